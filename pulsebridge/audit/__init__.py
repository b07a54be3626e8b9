"""The audit: three independent records of one run, joined record by record."""
