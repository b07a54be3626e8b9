"""The audit: what devices, Pulsar and the tables say about the same messages, compared message by message."""
