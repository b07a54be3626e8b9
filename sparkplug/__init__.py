"""Sparkplug B 3.0 (https://sparkplug.eclipse.org): its payloads, the sessions of edge nodes, tables, commands and STATE.

The specification is that of eclipse-sparkplug/sparkplug on GitHub. docs/guides/sparkplug.md says how to use this package, and lists
the numbered statements of the specification that concern a host application.
"""

from typing import Final

__all__ = ["NAMESPACE"]

NAMESPACE: Final = "spBv1.0"
"""First level of every topic of Sparkplug B."""
