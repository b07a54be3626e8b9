"""The ingest tier stores MQTT messages in Pulsar and sends PUBACK only after Pulsar's receipt.

The modules ``credit``, ``places``, ``restarts`` and ``session`` are pure.
"""
