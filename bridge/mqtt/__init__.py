"""Sessions with an MQTT broker: links, what they send and receive, and a simple device."""
