"""Authorities and certificates for servers and clients under test, as PEM files that Java and OpenSSL both read."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization

__all__ = ["HOST", "Authority", "Pem"]

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Pem:
    """The files of one certificate: the chain, the key (PKCS #8), and both in one file."""

    certificate: Path
    key: Path
    both: Path


class Authority:
    """An authority that issues certificates into one folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self._ca = trustme.CA(organization_name=name, key_type=trustme.KeyType.RSA)
        self._folder = folder
        self._name = name
        self.file = folder / f"{name}.pem"
        self._ca.cert_pem.write_to_path(str(self.file))

    def issue(self, name: str, *hosts: str, expired: bool = False, common_name: str | None = None) -> Pem:
        """Issue a certificate for ``hosts`` (default: the loopback address) into files named after ``name``."""
        now = datetime.datetime.now(datetime.timezone.utc)
        leaf = self._ca.issue_cert(
            *(hosts or (HOST, "localhost")),
            common_name=common_name,
            not_after=now - datetime.timedelta(minutes=1) if expired else None,
            key_type=trustme.KeyType.RSA,
        )
        key = serialization.load_pem_private_key(leaf.private_key_pem.bytes(), None).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        chain = b"".join(pem.bytes() for pem in leaf.cert_chain_pems)
        files = Pem(*(self._folder / f"{self._name}-{name}.{end}" for end in ("crt", "key", "both.pem")))
        for path, content in ((files.key, key), (files.certificate, chain), (files.both, key + chain)):
            path.write_bytes(content)
        return files
