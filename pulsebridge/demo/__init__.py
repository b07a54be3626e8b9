"""The demo: virtual devices from real recordings, an end-to-end run with kills, audit and report."""
