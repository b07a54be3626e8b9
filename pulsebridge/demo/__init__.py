"""The demo: devices from real recordings, the run with its kills, the audit of what became of every record."""
