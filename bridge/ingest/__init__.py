"""The ingest tier: MQTT into Pulsar. PUBACK leaves only after Pulsar's receipt."""
