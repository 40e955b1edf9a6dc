"""The consumers of each record when updates change the topology (sections 4.1, 7.1; G1).

This module checks these invariants:

- A production has the consumers and keys of one version of the topology. An owner whose sequencer was drawn after an
  update knows that update: its productions have the consumers of that version or of a later one.
- Each of those consumers commits the production once, under the key that it has by then, unless the consumer was
  removed.
- A removed computation's incarnation ends: the next one has no state and no ids of it. What it had committed arrives.
- No key's steps return to an earlier version of the code, and state stays with its keys through every migration.

Who could break them: an owner that routes by an old catalog, discards due records, or delivers void ones; a new
incarnation that finds rows of the former one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from millwheel.coordination.contract import KeyChange
from millwheel.model.catalog_keys import topology_key
from millwheel.model.incarnation import IncarnationId
from millwheel.model.stream_names import local_name
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.worker.interval.entry import ProductionRow
from simulation.blocks import Item
from simulation.expected import Arrivals, arrivals_by_stream
from simulation.forms import BASE, BEHIND, BETWEEN, MIDDLE, Form, code_of, life_of
from simulation.plan import Plan

__all__ = ["VersionedRoutes", "update_differences"]

_KEY: Final = topology_key("simulated")
_item: Final = msgspec.msgpack.Decoder(Item).decode
_JUDGED: Final = frozenset({BASE, MIDDLE, BEHIND})

Version = tuple[int, Form, dict[str, IncarnationId]]
"""The number that was drawn for it (owners with larger sequencers know it), its form, and its incarnations."""


class VersionedRoutes:
    """Follows the versions of the topology, and checks each journaled production against them."""

    def __init__(self, forms: Mapping[str, Form]) -> None:
        """Start without versions. ``forms``: by a package's digest."""
        self._forms = forms
        self._versions: list[Version] = []
        self._last = 0
        self._lives: set[str] = set()
        """All incarnations that the changing computations have had."""
        self.judged: Counter[int] = Counter()
        """How many productions had the consumers of each version, counted from 0."""

    def follow(self, changes: Iterable[KeyChange]) -> None:
        """Read the topology's versions from the coordinator's changes."""
        for change in changes:
            if change.key != _KEY or change.value is None:
                continue
            record = catalog.TopologyRecord.FromString(change.value)
            form = self._forms.get(record.spec.code.digest)
            if record.version == self._last or form is None:
                continue
            self._last = record.version
            drawn = [*record.switching.values(), *(one.switching for one in record.removed)]
            incarnations = {name: one for name, one in record.incarnations.items() if name in _JUDGED}
            self._lives.update(incarnations.values())
            self._versions.append((max(drawn, default=0), form, incarnations))

    def judge(self, journal: str, sequencer: int, rows: Iterable[ProductionRow]) -> Iterator[str]:
        """What is wrong with the consumers of an entry's productions."""
        if not self._versions:
            return
        first = max(index for index, (drawn, _, _) in enumerate(self._versions) if drawn < sequencer)
        for position, _, name, value, _, targets, opaque in rows:
            stream = local_name("simulated", name)
            # A weak production is journaled only as a straggler. It lists only the consumers that have not ACKed it.
            if opaque or not any(form.fields_of(stream) for _, form, _ in self._versions):
                continue
            item = _item(value)
            mine = {consumer: key for consumer, key in targets if consumer in self._lives}
            fits = [index for index, one in enumerate(self._versions) if _consumers(one, stream, item) == mine]
            if not fits or fits[-1] < first:
                claim = f"position {position} of {journal}, on {stream}, goes to {mine}"
                if not fits:
                    yield f"{claim}, as no version of the topology has it (G1)"
                else:
                    yield f"{claim}, as version {fits[-1]} has it, and its owner {sequencer} knows version {first} (G1)"
            else:
                self.judged[max(fits[0], first)] += 1


def _consumers(version: Version, stream: str, item: Item) -> dict[str, bytes]:
    """The consumers of a record of ``stream`` in a version, with the record's key for each."""
    _, form, incarnations = version
    fields = form.fields_of(stream)
    return {incarnations[name]: getattr(item, field).encode() for name, field in fields.items()}


def update_differences(plan: Plan, items: Iterable[Item]) -> Iterator[str]:
    """Wrong or missing records at the sink of the changing part.

    ``items``: in the order of the sink.
    """
    if plan.form is None:
        return
    items = list(items)
    streams = arrivals_by_stream(plan)
    first = streams[plan.form.stream]
    either: Counter[int] = Counter()
    for stream in plan.form_streams:
        either.update({number: most for number, (_, most) in streams[stream].items()})
    found: dict[str, Counter[int]] = {}
    for item in items:
        found.setdefault(_way(item), Counter()).update(item.ids)
    for way, counts in sorted(found.items()):
        most = {number: count for number, (_, count) in first.items()} if way in (BASE, BEHIND) else either
        if extra := {number: count for number, count in counts.items() if count > most.get(number, 0)}:
            yield f"by way of {way} records came too often, or from nowhere: {extra} (G1)"
    yield from _lost(first, found.get(BASE, Counter()))
    yield from _codes(items)


def _way(item: Item) -> str:
    """The changing computation that a record came through; ``behind`` itself: directly from the first stream."""
    names = [life_of(step.computation) for step in item.steps]
    return next((name for name in reversed(names) if name == BASE or name.startswith(f"{MIDDLE}#")), BEHIND)


def _lost(due: Arrivals, found: Counter[int]) -> Iterator[str]:
    if lost := {number: least - found[number] for number, (least, _) in due.items() if found[number] < least}:
        yield f"by way of {BASE}, which no update touches, records are lost on {BETWEEN} or behind it: {lost} (G1)"


def _codes(items: Iterable[Item]) -> Iterator[str]:
    """The versions of the code that made a key's steps never decrease."""
    steps: dict[tuple[str, str], dict[int, int]] = {}
    for item in items:
        for step in item.steps:
            steps.setdefault((life_of(step.computation), step.key), {})[step.number] = code_of(step.computation)
    for (name, key), codes in steps.items():
        order = [codes[number] for number in sorted(codes)]
        if order != sorted(order):
            yield f"{name}, key {key}: its steps were made by the versions {order} of the code (G1)"
