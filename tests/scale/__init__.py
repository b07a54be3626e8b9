"""What one machine shows of many devices, on request: ``make scale``."""
