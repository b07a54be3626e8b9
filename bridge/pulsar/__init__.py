"""Apache Pulsar: client, admin, provisioning, reading and sending.

Pure: ``acks``, ``errors`` and ``provisioning_plan``.
"""
