"""The bridge: MQTT into Apache Pulsar, and commands from Pulsar back to MQTT devices, without a JVM."""

__version__ = "0.1.0"
