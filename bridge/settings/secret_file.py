"""A secret in a file that is read at each use. A rotated token needs no restart."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from pydantic import SecretStr

from bridge.errors import ConfigError
from bridge.loggers import get_logger

__all__ = ["SecretFile"]

log = get_logger("settings")


class SecretFile(SecretStr):
    """The content of a file without newlines at its end. Never printed.

    Each call of ``get_secret_value`` reads the file. While the file is missing, empty or not text, for example during a
    rotation, the last content applies. Two are equal if they name the same file.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        """Raises OSError or UnicodeDecodeError if the file cannot be read, ValueError if it is empty."""
        self.path = Path(path).expanduser()
        super().__init__(_content(self.path))

    def get_secret_value(self) -> str:
        """Return the file's current content. Any thread may call it. Raises ConfigError if no read ever succeeded."""
        try:
            self._secret_value = _content(self.path)
        except (OSError, ValueError) as e:
            if not self._secret_value:
                raise ConfigError(f"the secret's file {self.path} cannot be read: {e}") from e
            log.warning(
                "a secret's file cannot be read, so its last content still applies. Action: rewrite the file to revoke "
                "it",
                file=str(self.path),
                why=str(e),
                shown=1,
            )
        return self._secret_value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretFile) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)


def _content(path: Path) -> str:
    text = path.read_text(encoding="utf-8").rstrip("\r\n")
    if not text:
        raise ValueError("it is empty")
    return text
