"""Messages over HTTP: ``POST /topics/{mqtt topic}?qos=1``, answered when Pulsar has stored them.

It needs the extra ``http``. The modules ``access`` and ``requests`` are pure.
"""
