"""Sessions with an MQTT broker: links, their packets and messages, and a simple device.

A link reads and writes packets itself, because paho refuses some legal properties and fails at others (H33). Tests
compare its packets with paho's.

Pure: all modules except ``buffered_socket``, ``client`` and ``device``.
"""
