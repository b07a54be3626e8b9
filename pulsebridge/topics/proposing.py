"""Proposal of presets, rules and typed tables for the received topics.

Presets that match come first; else it chooses the level that most looks like the device. It proposes only valid
settings: it checks each rule with all rules before it, and replaces a rule that collides by a note. The proposals are
guesses by names, counts and repetition; the user decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from bridge.routing.patterns import Star
from bridge.routing.rules import mapping_problems
from bridge.routing.templates import Filter
from bridge.settings.ingest import IngestSettings
from bridge.settings.presets import load_preset
from bridge.settings.rules import TopicRule
from bridge.settings.streaming import BUILT_IN
from bridge.settings.tables import TableDeclaration
from pulsebridge.topics.schemas import Fields, table_for
from pulsebridge.topics.tree import LevelShape, Node, Shape, TopicTree

__all__ = ["PresetSigns", "Proposal", "propose"]

_SAFE: Final = re.compile(r"[A-Za-z0-9_.-]{1,60}\Z")
_COMMANDS: Final = frozenset(["set", "get", "cmd", "cmnd", "command", "commands", "down", "request"])
_MAX_RULES: Final = 30
_MAX_TABLES: Final = 8
"""Most tables for one rule; with more, its messages have too many forms for typed tables."""
_OWN_FORM: Final = 1.5
"""Ratio of the field names of all payload forms to those of one form; above it, each form gets a table."""
_UNIQUE: Final = 0.75
"""Names with at least this unique share count as not repeated, because both numbers are estimates."""
_LIKELY: Final = 0.45
"""Lowest score of a level that is proposed as the device."""


class PresetSigns:
    """Counts the messages that match the signs of a preset."""

    def __init__(self, names: Sequence[str]) -> None:
        self.seen: dict[str, int] = {}
        self._by_root: dict[str, list[tuple[str, Filter]]] = {}
        for name in names:
            for sign in load_preset(name).signs:
                self._by_root.setdefault(sign.split("/")[0], []).append((name, Filter.parse(sign)))

    def add(self, topic: str) -> None:
        """Count a message's topic."""
        signs = self._by_root.get(topic.partition("/")[0])
        if signs is None:
            return
        levels = topic.split("/")
        for name in {name for name, sign in signs if sign.match(levels) is not None}:
            self.seen[name] = self.seen.get(name, 0) + 1


@dataclass(slots=True)
class Proposal:
    """Proposed settings, and notes for the user."""

    presets: list[str] = field(default_factory=list)
    routes: list[TopicRule] = field(default_factory=list)
    tables: list[TableDeclaration] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def yaml(self) -> str:
        """Return the sections ``ingest`` and ``streaming`` to paste."""
        ingest: dict[str, Any] = {}
        if self.presets:
            ingest["presets"] = list(self.presets)
        if self.routes:
            ingest["routes"] = [rule.model_dump(exclude_defaults=True) for rule in self.routes]
        if not ingest:
            return ""
        body = {"ingest": ingest}
        if self.tables:
            body["streaming"] = {"tables": [self._table(one) for one in self.tables]}
        text = _yaml(body, allow_unicode=True)
        printed = all(line.isprintable() for line in text.split("\n"))
        return text if printed else _yaml(body, allow_unicode=False)

    @staticmethod
    def _table(table: TableDeclaration) -> dict[str, Any]:
        (decoding,) = table.decoding
        return {"name": table.name, "decoding": decoding.model_dump(exclude_defaults=True)}


class _Dumper(yaml.SafeDumper):
    """Writes an unprintable text in double quotes, because only these have escapes."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"'
    ),
)


def _yaml(body: dict[str, Any], *, allow_unicode: bool) -> str:
    return str(yaml.dump(body, Dumper=_Dumper, sort_keys=False, allow_unicode=allow_unicode, width=120))


def propose(tree: TopicTree, signs: Mapping[str, int]) -> Proposal:
    """Return presets, rules and tables for the counts of the tree. The proposal passes the checks of the settings."""
    proposal = Proposal()
    for name in sorted(signs, key=lambda n: -signs[n]):
        _try_preset(proposal, name)
    covered = {rule.filter.split("/")[0] for name in proposal.presets for rule in load_preset(name).routes}
    open_roots = {root: shape for root, shape in tree.shapes.items() if root not in covered}
    first = tree.whole.levels[0] if tree.whole.levels else LevelShape()
    if first.names.count > 30 and first.ids > first.new_names / 2 and not covered:
        _try_rule(proposal, _rule(tree.whole, None, proposal.routes))
        _add_tables(proposal, tree.root)
        return proposal
    if first.names.count > len(tree.shapes):
        proposal.notes.append(
            f"about {first.names.count} first levels, {len(tree.shapes)} of them inspected: without routes each "
            "becomes a Pulsar topic (ingest.limits.topics)"
        )
    ranked = sorted(open_roots.items(), key=lambda item: (-item[1].messages, item[0]))
    for root, shape in ranked[:_MAX_RULES]:
        _try_rule(proposal, _rule(shape, root, proposal.routes))
        _note_commands(proposal, root, tree.root.children.get(root))
    if len(ranked) > _MAX_RULES:
        proposal.notes.append(f"{len(ranked) - _MAX_RULES} first levels with fewer messages have no rule here")
    _add_tables(proposal, tree.root)
    return proposal


def _add_tables(proposal: Proposal, root: Node) -> None:
    """Add typed tables for the JSON objects on the topics of the rules; presets have their own tables."""
    for rule in proposal.routes:
        filters = Filter.parse(rule.filter)
        forms: dict[str | None, Fields] = {}
        mixed = False
        for name, node in _nodes(root, filters.levels):
            if node.fields is not None and set(node.kinds) == {"JSON"}:
                forms.setdefault(name, Fields()).merge(node.fields)
            mixed = mixed or bool(node.messages and set(node.kinds) != {"JSON"})
        whole = Fields()
        for one in forms.values():
            whole.merge(one)
        separate = len(whole.below) * len(forms) > _OWN_FORM * sum(len(one.below) for one in forms.values())
        named = filters.levels[-1] is Star.LEVEL and all(name and _SAFE.match(name) for name in forms)
        if named and (separate or mixed) and len(filters.levels) > 1 and len(forms) <= _MAX_TABLES:
            start = rule.filter.rpartition("/")[0]
            for name, one in forms.items():
                _add_table(proposal, f"{rule.name}_{name}", f"{start}/{name}", one)
        elif forms and (mixed or separate):
            proposal.notes.append(
                f"no table for {rule.filter!r}: its payloads have several forms; the table readings has their fields"
            )
        elif forms:
            _add_table(proposal, rule.name, rule.filter, whole)


def _add_table(proposal: Proposal, name: str, filters: str, fields: Fields) -> None:
    name = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_").lower() or "messages"
    used = {*BUILT_IN, "quarantine", *(table.name for table in proposal.tables)}
    while name in used:
        name += "_2"
    table, notes = table_for(name, filters, fields)
    if table is not None:
        proposal.tables.append(table)
        proposal.notes += notes


def _nodes(node: Node, levels: Sequence[str | Star], name: str | None = "") -> Iterator[tuple[str | None, Node]]:
    """Yield last level and node of each topic of a filter; None: a name that was not kept, or many levels."""
    if not levels:
        yield name, node
        return
    rest = levels[0] is Star.REST
    if rest:
        yield None, node
    for child_name, child in node.children.items():
        if rest or levels[0] is Star.LEVEL or levels[0] == child_name:
            yield from _nodes(child, levels if rest else levels[1:], None if rest else child_name)
    if node.others is not None and isinstance(levels[0], Star):
        yield from _nodes(node.others, levels if rest else levels[1:], None)


def _try_preset(proposal: Proposal, name: str) -> None:
    presets = (*proposal.presets, name)
    if mapping_problems(IngestSettings(presets=presets)):
        proposal.notes.append(f"the preset {name} matches too, but collides with {', '.join(proposal.presets)}")
        return
    proposal.presets.append(name)


def _try_rule(proposal: Proposal, rule: TopicRule) -> None:
    rules = (*proposal.routes, rule)
    problems = mapping_problems(IngestSettings(routes=rules, presets=tuple(proposal.presets)))
    if problems:
        proposal.notes.append(f"no rule for {rule.filter!r}: {problems[0]}")
    else:
        proposal.routes.append(rule)


def _note_commands(proposal: Proposal, root: str, node: Node | None) -> None:
    found = set() if node is None else _COMMANDS & set(_names_below(node))
    if found:
        proposal.notes.append(
            f"{root}/… has a level {min(found)!r}: commands are not readings, so exclude their topics from the filter "
            "and name them as command_topic"
        )


def _names_below(node: Node) -> Iterator[str]:
    for name, child in node.children.items():
        yield name
        yield from _names_below(child)
    if node.others is not None:
        yield from _names_below(node.others)


def _unique_share(level: LevelShape) -> float:
    """Return the share of names under exactly one parent; 1 if all are."""
    return level.names.count / max(1, level.prefixes.count)


def _score(shape: Shape, number: int) -> float:
    """Return the device score of a level: it has many unique names that look like ids."""
    level = shape.levels[number]
    unique = min(1.0, _unique_share(level) / _UNIQUE)
    ids = level.ids / max(1, level.new_names)
    present = level.messages / max(1, shape.messages)
    many = 1.0 if level.names.count > 1 else 0.6
    return unique * (0.5 + 0.5 * ids) * present * many


def _rule(shape: Shape, root: str | None, others: Sequence[TopicRule]) -> TopicRule:
    """Return the rule for one first level, or for all of them if ``root`` is None."""
    begin = 0 if root is None else 1
    numbers = [n for n in range(begin, len(shape.levels)) if shape.levels[n].messages * 2 > shape.messages]
    best = max(numbers, key=lambda n: (round(_score(shape, n), 2), n), default=None)
    parts = [] if root is None else [root]
    name = _name(root, others)
    topic = name if root == name else ("devices" if root is None else "{level1}")
    path = _device_path(shape, best)
    if path is not None or best is None or _score(shape, best) < _LIKELY:
        rest = ["#"] if len(shape.levels) > 1 or root is None else []
        device = None if path is None else f"{{json:{path}}}"
        return TopicRule(name=name, filter="/".join(parts + rest), topic=topic, device=device)
    groups = []
    for number in range(begin, best):
        level = shape.levels[number]
        if level.names.count == 1 and level.whole:
            parts.append(level.example)
        else:
            groups.append(f"group{number + 1}")
            parts.append(f"+group{number + 1}")
    parts.append("+device")
    deeper = [depth for depth in shape.depths if depth > best + 1]
    if deeper == [best + 2] and best + 1 not in shape.depths and best + 2 <= len(shape.levels):
        parts.append("+metric")
    elif deeper:
        parts.append("#")
    repeated = _unique_share(shape.levels[best]) < _UNIQUE
    template = "/".join(f"{{{group}}}" for group in [*(groups if repeated else []), "device"])
    return TopicRule(name=name, filter="/".join(parts), topic=topic, device=template)


def _device_path(shape: Shape, best: int | None) -> str | None:
    """Return the path in the payloads that distinguishes more devices than the topics do, else None."""
    by_topic = 1 if best is None else shape.levels[best].names.count
    found = [
        (texts.count, path)
        for path, (seen, texts) in shape.paths.items()
        if seen[0] * 10 >= shape.parsed * 9 and shape.parsed * 2 > min(shape.messages, 500)
    ]
    many, path = max(found, default=(0, ""))
    return path if many > max(2, 1.5 * by_topic) else None


def _name(root: str | None, others: Sequence[TopicRule]) -> str:
    used = {rule.name for rule in others} | {"default"}
    name = "devices" if root is None else root
    if _SAFE.match(name) and name.strip(".") and name not in used:
        return name
    return next(f"rule-{n}" for n in range(1, len(others) + 3) if f"rule-{n}" not in used)
