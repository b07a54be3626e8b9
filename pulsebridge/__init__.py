"""The user's entry: the demo, the audit of its records, and the notebooks' classes."""
