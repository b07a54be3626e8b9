"""The ingest tier stores MQTT messages in Pulsar and sends PUBACK only after Pulsar's receipt.

The modules ``credit`` and ``session_filters`` are pure.
"""
