"""``pulsebridge check --broker``: what an MQTT broker does, and what follows for ingest and push.

``bench`` has the clients of one check and what they leave at the broker. ``delivery`` and ``sessions`` have the tries,
``check`` runs them.
"""
