"""The demo: virtual devices from real recordings, a run of the whole way with kills, its audit and its report."""
