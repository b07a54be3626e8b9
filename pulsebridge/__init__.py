"""The front door: the demo, the audit of its records, and what the notebooks call."""
