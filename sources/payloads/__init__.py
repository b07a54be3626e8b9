"""Decodes payloads that Spark cannot read, within limits of time, memory and output. Runs in Python workers."""
