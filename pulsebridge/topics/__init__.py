"""Explanation of the routes of MQTT topics, and their discovery.

Discovery listens at an MQTT broker, counts messages in bounded memory and proposes rules. All modules but listening are
pure.
"""
