"""``pulsebridge check``: whether every endpoint answers and every package is really ours."""
