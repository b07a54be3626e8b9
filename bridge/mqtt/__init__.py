"""Sessions with an MQTT broker: links, their packets and messages, and a simple device.

Pure: all modules except ``buffered_socket``, ``client``, ``device`` and ``loop_thread``.
"""
