"""The local stack: Pulsar and an MQTT broker as child processes on loopback ports, in one data folder."""
