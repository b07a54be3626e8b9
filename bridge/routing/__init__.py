"""Maps an MQTT topic to a Pulsar topic, a key and a device. Pure."""
