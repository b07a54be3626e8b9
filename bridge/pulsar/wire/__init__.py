"""Pulsar's binary protocol, as far as writing batches and looking up brokers need it.

Pure: ``batches``, ``commands`` and ``protobuf``.
"""
