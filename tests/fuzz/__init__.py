"""Fuzzing of every parser of foreign bytes: ``make fuzz``; ``tests/fuzz/test_fuzz.py`` runs each target briefly."""
