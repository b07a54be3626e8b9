"""The bridge: writes MQTT messages to Apache Pulsar, and Pulsar's commands to MQTT devices, without a JVM."""

__version__ = "0.1.0"
