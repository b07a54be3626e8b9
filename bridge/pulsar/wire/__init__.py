"""Pulsar's binary protocol, as far as writing batches and reading entries need it.

Pure: ``batches``, ``commands`` and ``protobuf``.
"""
