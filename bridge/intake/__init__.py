"""The intake stores messages of every protocol in Pulsar and reports each stored message.

The module ``targets`` is pure.
"""
