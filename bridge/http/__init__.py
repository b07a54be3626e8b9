"""Messages over HTTP, answered when Pulsar has stored them, and commands, which devices fetch by long poll.

It needs the extra ``http``. The modules ``access`` and ``requests`` are pure.
"""
