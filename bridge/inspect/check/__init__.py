"""``pulsebridge check``: whether every endpoint answers, and the rights of a tier."""
