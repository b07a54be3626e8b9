"""The intake stores messages of every protocol in Pulsar and reports each stored message.

The modules ``idle``, ``readings``, ``sightings`` and ``stalls`` are pure.
"""
