"""Output of ``pulsebridge topics discover``, for programs and for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from bridge.display import printable
from bridge.settings.presets import load_preset
from pulsebridge.output.text import text_of
from pulsebridge.topics.proposing import Proposal
from pulsebridge.topics.tree import Node, TopicTree

__all__ = ["discovery_of", "discovery_text"]

_MAX_LINES: Final = 60
_MAX_CHILDREN: Final = 8


def discovery_of(tree: TopicTree, signs: Mapping[str, int], proposal: Proposal, listened_s: float) -> dict[str, Any]:
    """Return counts and proposal for ``--json``. Rates are live messages per second."""
    live = tree.messages - tree.retained
    return {
        "listened_s": round(listened_s, 1),
        "messages": tree.messages,
        "retained": tree.retained,
        "rate": _rate(live, listened_s),
        "topics": tree.topics.count,
        "incomplete": tree.unfolded,
        "tree": [_node(name, node, listened_s) for name, node in _ranked(tree.root)],
        "presets": [
            {
                "name": name,
                "about": load_preset(name).about,
                "messages": count,
                "tables": [table.name for table in load_preset(name).tables],
            }
            for name, count in sorted(signs.items(), key=lambda item: -item[1])
        ],
        "routes": [rule.model_dump(exclude_defaults=True) for rule in proposal.routes],
        "tables": [table.model_dump(mode="json", exclude_defaults=True) for table in proposal.tables],
        "notes": proposal.notes,
        "yaml": proposal.yaml(),
    }


def _rate(messages: int, seconds: float) -> float:
    return round(messages / max(seconds, 0.001), 2)


def _ranked(node: Node) -> list[tuple[str | None, Node]]:
    """Return the children, those with the most messages first; None: all other names."""
    named: list[tuple[str | None, Node]] = sorted(
        node.children.items(), key=lambda item: (-item[1].messages - item[1].below, item[0])
    )
    return named if node.others is None else [*named, (None, node.others)]


def _node(name: str | None, node: Node, seconds: float) -> dict[str, Any]:
    shown: dict[str, Any] = {"level": name, "messages": node.messages, "below": node.below}
    if node.messages:
        shown |= {
            "retained": node.retained,
            "rate": _rate(node.messages - node.retained, seconds),
            "kinds": node.kinds,
            "mean_bytes": round(node.size / node.messages),
            "largest_bytes": node.largest,
        }
    if node.children or node.others is not None:
        shown |= {"names": node.names.count, "children": [_node(n, c, seconds) for n, c in _ranked(node)]}
    return shown


def discovery_text(shown: Mapping[str, Any]) -> str:
    """Return counts and proposal for people."""
    lines = [
        f"{shown['messages']} messages ({shown['retained']} retained) on {shown['topics']} topics in "
        f"{shown['listened_s']:g} s, {shown['rate']:g} a second"
    ]
    if not shown["messages"]:
        return (
            lines[0] + "\nnothing was published: listen longer (--for 10m), or check that mqtt.username may subscribe"
        )
    tree = list(_tree_lines(shown["tree"], ""))
    width = min(60, max((len(left) for left, _ in tree), default=0))
    lines += ["", *(f"{left:<{width}}  {right}".rstrip() for left, right in tree[:_MAX_LINES])]
    if len(tree) > _MAX_LINES:
        lines.append(f"… {len(tree) - _MAX_LINES} more lines, all of them with --json")
    for preset in shown["presets"]:
        lines += [
            "",
            f"looks like the preset {preset['name']}: {preset['about']} ({preset['messages']} messages), with tables "
            + ", ".join(preset["tables"]),
        ]
    if shown["yaml"]:
        lines += [
            "",
            "# proposed settings, check them before use",
            *shown["yaml"].rstrip().split("\n"),
        ]
    return text_of([*lines, *(f"# {note}" for note in shown["notes"])])


def _tree_lines(nodes: list[dict[str, Any]], indent: str) -> Iterator[tuple[str, str]]:
    alike: dict[object, list[dict[str, Any]]] = {}
    for node in nodes:
        alike.setdefault(_likeness(node), []).append(node)
    groups = sorted(alike.values(), key=lambda group: -sum(n["messages"] + n["below"] for n in group))
    for group in groups[:_MAX_CHILDREN]:
        node = _merged(group)
        yield f"{indent}{_names(group)}{'/' if 'children' in node else ''}", _facts(node)
        yield from _tree_lines(node.get("children", []), indent + "  ")
    if len(groups) > _MAX_CHILDREN:
        yield f"{indent}…", f"{len(groups) - _MAX_CHILDREN} more"


def _names(group: list[dict[str, Any]]) -> str:
    names = ["(other names)" if node["level"] is None else _shown(node["level"]) for node in group]
    return names[0] if len(names) == 1 else f"{{{', '.join(names[:2])}{', …' if len(names) > 2 else ''}}}"


def _likeness(node: Mapping[str, Any]) -> object:
    """Return the key of nodes that share a line: their kind and structure, without names."""
    kinds = node.get("kinds", {})
    below = frozenset(_likeness(child) for child in node.get("children", []))
    return (max(kinds, key=lambda kind: kinds[kind]) if kinds else None, below)


def _merged(group: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one node with the sums of the group."""
    if len(group) == 1:
        return group[0]
    merged: dict[str, Any] = {"messages": 0, "below": 0, "alike": len(group)}
    children: dict[str | None, list[dict[str, Any]]] = {}
    size = 0
    for node in group:
        for name in ("messages", "below", "retained", "rate"):
            merged[name] = round(merged.get(name, 0) + node.get(name, 0), 2)
        for kind, count in node.get("kinds", {}).items():
            merged.setdefault("kinds", {}).setdefault(kind, 0)
            merged["kinds"][kind] += count
        size += node.get("mean_bytes", 0) * node["messages"]
        for child in node.get("children", []):
            children.setdefault(child["level"], []).append(child)
    merged["mean_bytes"] = round(size / max(1, merged["messages"]))
    if children:
        merged["children"] = [{**_merged(same), "level": name} for name, same in children.items()]
        merged["names"] = max(sum(1 for name in children if name is not None), *(n["names"] for n in group))
    return merged


def _shown(level: str) -> str:
    return printable(level if level.strip() == level and level else repr(level), 40)


def _facts(node: Mapping[str, Any]) -> str:
    facts = []
    if "alike" in node:
        facts.append(f"{node['alike']} alike")
    if node["messages"]:
        kinds = ", ".join(sorted(node["kinds"], key=lambda kind: -node["kinds"][kind]))
        facts.append(f"{node['rate']:g}/s  {kinds}  {node['mean_bytes']} bytes")
        if node["retained"]:
            facts.append(f"{node['retained']} retained")
    if node.get("names", 0) > 1:
        facts.append(f"{node['names']} names")
    return "  ".join(facts)
