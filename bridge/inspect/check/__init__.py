"""``pulsebridge check``: whether every endpoint answers and every import package belongs to Pulsebridge."""
