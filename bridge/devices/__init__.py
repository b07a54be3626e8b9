"""What waits for each device, as Pulsar tells it, and what became of a command: read-only, beside the owners."""
