"""``pulsebridge check --broker``: what an MQTT broker does, and what follows for ingest and push.

``bench`` has the clients of one check, ``tries`` what they try, ``check`` runs the tries.
"""
