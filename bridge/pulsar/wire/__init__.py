"""Pulsar's binary protocol, as far as writing batches, reading entries and looking up brokers need it.

Pulsar's own client refuses messages without an error (H1), and returns messages, not entries, so a gap is invisible.
Consumers, readers of single messages and chunked messages use that client.

Pure: ``batches``, ``commands`` and ``protobuf``.
"""
