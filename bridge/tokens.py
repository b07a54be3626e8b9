"""What a JSON Web Token says of itself, for messages to people. Nothing is verified here: servers do that."""

from __future__ import annotations

import base64
import json

__all__ = ["expiry_of", "role_of"]


def role_of(token: str) -> str | None:
    """Return the token's subject, by which Pulsar names the role, None when it is no such token. No secret."""
    subject = _claims(token).get("sub")
    return subject if isinstance(subject, str) else None


def expiry_of(token: str) -> int | None:
    """Return when the token expires, in seconds since the epoch, None when it does not say."""
    expiry = _claims(token).get("exp")
    return int(expiry) if isinstance(expiry, int | float) else None


def _claims(token: str) -> dict[str, object]:
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        found = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, UnicodeDecodeError):
        return {}
    return found if isinstance(found, dict) else {}
