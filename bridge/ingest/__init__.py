"""The ingest tier stores MQTT messages in Pulsar and sends PUBACK only after Pulsar's receipt.

The module ``session_filters`` is pure.
"""
