"""Waiting commands of devices and the history of commands, read without an effect on push.

The modules acknowledged and view are pure.
"""
