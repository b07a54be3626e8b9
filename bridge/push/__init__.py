"""The push tier: commands from Pulsar to the devices over MQTT, in order per device, with a receipt for each."""
