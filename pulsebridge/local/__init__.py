"""The local stack: Pulsar and an MQTT broker as child processes on loopback ports, in one data folder.

The modules jvm_flags, mqtt_servers, pulsar_server and sizes are pure: no process, no socket.
"""
