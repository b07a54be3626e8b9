"""What Python asks of Spark's JVM, each call as py4j words it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from py4j.clientserver import ClientServerConnection

if TYPE_CHECKING:
    import pytest

__all__ = ["noted_calls"]


def noted_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows with each call from here to the test's end."""
    asked: list[str] = []
    send = ClientServerConnection.send_command

    def noted(self: ClientServerConnection, command: str) -> str:
        asked.append(command)
        answer: str = send(self, command)
        return answer

    monkeypatch.setattr(ClientServerConnection, "send_command", noted)
    return asked
