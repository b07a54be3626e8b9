"""Deterministic simulation: the product's decisions run against a simulated Pulsar, MQTT broker and clock.

A world is made from a seed alone, and so are its events. What a world checks is the promise of docs/explain/guarantees.md.
"""
