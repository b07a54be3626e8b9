"""Whether a request bears one of the tokens. It takes the same time for every token that is not one of them."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

__all__ = ["bears_token"]


def bears_token(authorization: Iterable[bytes], tokens: Iterable[str]) -> bool:
    """Return whether the Authorization header is given once and holds one of the tokens as ``Bearer``."""
    values = list(authorization)
    scheme, _, given = values[0].partition(b" ") if len(values) == 1 else (b"", b"", b"")
    digest = hashlib.sha256(given.strip()).digest()
    found = False
    for token in tokens:  # all of them, whichever fits
        found |= hmac.compare_digest(hashlib.sha256(token.encode()).digest(), digest)
    return found and scheme.lower() == b"bearer"
