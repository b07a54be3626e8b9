"""The audit: compares the records of devices, Pulsar and tables message by message."""
