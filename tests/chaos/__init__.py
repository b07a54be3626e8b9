"""Kills under load: the worker, the MQTT broker and Pulsar, with an account of every message at the end."""
