"""The tables with their defaults: name this module in ``streaming.modules``.

A module of your own may call ``sparkplug.tables.declare`` with other values instead.
"""

from __future__ import annotations

from sparkplug.tables import declare

__all__: list[str] = []

declare()
