"""Reads claims of a JSON Web Token for messages to users. Servers verify the token, this module does not."""

from __future__ import annotations

import base64
import json

__all__ = ["expiry_of", "role_of"]


def role_of(token: str) -> str | None:
    """Return the token's subject, Pulsar's name of the role; None if it has no subject. It is not secret."""
    subject = _claims(token).get("sub")
    return subject if isinstance(subject, str) else None


def expiry_of(token: str) -> int | None:
    """Return when the token expires, in seconds since the epoch; None if it does not state that."""
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
