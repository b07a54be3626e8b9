"""Decoding of payloads: bytes to documents, documents to columns, each with a bounded cost."""
