"""Order of what one key produces: at every consumer's key and in every log, that of its commits (G15).

Two looks at it. The journals say which commits consumed which productions: of one producing key, no commit of a
consumer may take an older production after a younger one. The steps that records carry to the sinks say in which order
one commit ran them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from millwheel.core.catalog import Catalog
from millwheel.store.contract import Append
from millwheel.store.memory import MemoryStore
from millwheel.worker.dedup import IdDelta
from millwheel.worker.interval.entry import Entry, ProductionRow
from millwheel.worker.interval.entry import decode_entry as decode_interval
from millwheel.worker.log.entry import LogEntry
from millwheel.worker.log.entry import decode as decode_log
from simulation.blocks import LIBRARY, Item
from simulation.plan import Plan
from simulation.store import whole_entry

__all__ = ["JournalOrder", "steps_out_of_order"]

Place = tuple[str, bytes, str, bytes]
"""Producing computation and key, consumer and its key."""


class JournalOrder:
    """Reads each entry as it is appended: what was produced, and what was consumed."""

    def __init__(self) -> None:
        self._appends = 0
        self._made: dict[tuple[str, int], tuple[int, bytes, dict[str, bytes]]] = {}
        """By sequence and position: the number of the append, the producing key, consumers and their keys."""
        self._last: dict[Place, tuple[int, int]] = {}
        """What each consumer's key has last consumed of each producing key: append and position."""
        self.seen = 0
        """How many consumed productions were compared."""

    def appended(self, journal: str, append: Append, catalog: Catalog, store: MemoryStore) -> Iterator[str]:
        """Take an entry of an interval, or of a log, in; yields what is out of order."""
        self._appends += 1
        incarnation = journal.rpartition(".j")[0]
        entry: Entry | LogEntry
        if catalog.computation(incarnation) is not None:
            entry = decode_interval(whole_entry(store, journal, append.commit, append.entry), journal)
            self._produced(journal, entry.productions)
        elif any(one.incarnation == incarnation for one in catalog.logs.values()):
            entry = decode_log(append.entry, LogEntry, journal)
        else:
            return
        taken: dict[Place, list[tuple[int, int]]] = {}
        for sequence, positions in IdDelta.from_wire(entry.ids).positions:
            for position in positions:
                if (made := self._made.get((sequence, position))) is not None:
                    number, producer, targets = made
                    place = sequence.rpartition(".j")[0], producer, incarnation, targets[incarnation]
                    taken.setdefault(place, []).append((number, position))
        for place, found in taken.items():
            self.seen += len(found)
            last = self._last.get(place, (0, 0))
            if min(found) <= last:
                told = f"{journal}, commit {append.commit}: key {place[3]!r} takes {min(found)} of key {place[1]!r}"
                yield f"{told} of {place[0]} after {last} (G15)"
            self._last[place] = max(last, max(found))

    def _produced(self, journal: str, rows: Iterable[ProductionRow]) -> None:
        for position, producer, _, _, _, targets, opaque in rows:
            if not opaque:
                self._made[journal, position] = self._appends, producer, dict(targets)


def steps_out_of_order(plan: Plan, sunk: Mapping[str, Mapping[int, tuple[int, Item]]]) -> Iterator[str]:
    """What a key's steps say of the order in which its consumers' keys, or a log, took what it produced."""
    nodes = {node["name"]: node for node in plan.nodes}
    direct = {
        (one["name"], other["name"])
        for one in plan.nodes
        for other in plan.nodes
        if not set(one["outputs"]).isdisjoint(other["inputs"]) and other["exactly_once"] and one["exactly_once"]
    }
    if any(_unnumbered(node) for node in plan.nodes):
        # It leaves no step: what came through it looks as if it had come directly, and its keys share the way.
        direct = {pair for pair in direct if not _by_pass(plan, *pair)}
    runs: dict[tuple[str, str, str, str], dict[int, int]] = {}
    for stream, records in sunk.items():
        last: dict[tuple[str, str], int] = {}
        makers = [node for node in plan.nodes if stream in node["outputs"]]
        for offset, (_, item) in sorted(records.items()):
            for one, two in zip(item.steps, item.steps[1:], strict=False):
                if (one.computation, two.computation) in direct and two.number:
                    runs.setdefault((one.computation, one.key, two.computation, two.key), {})[two.number] = one.number
            if len(makers) == 1 and item.steps and item.steps[-1].computation == makers[0]["name"]:
                step = item.steps[-1]
                before = last.get((step.computation, step.key), 0)
                if step.number < before and nodes[step.computation]["exactly_once"]:
                    told = f"stream {stream}, offset {offset}: step {step.number} of {step.computation}, key {step.key}"
                    yield f"{told}, comes after step {before} (G15)"
                last[step.computation, step.key] = max(before, step.number)
    for (one_name, one_key, two_name, two_key), numbers in runs.items():
        order = [numbers[number] for number in sorted(numbers)]
        if order != sorted(order):
            told = f"{two_name}, key {two_key}, took the steps of {one_name}, key {one_key}"
            yield f"{told}, in the order {order} (G15)"


def _unnumbered(node: Mapping[str, Any]) -> bool:
    """Whether a node's block leaves no step of its own."""
    return not node["strong"] or node["kind"] in ("pass", "brief", "scatter", LIBRARY)


def _by_pass(plan: Plan, one: str, two: str) -> bool:
    """Whether a block that leaves no step stands between the two as well."""
    nodes = {node["name"]: node for node in plan.nodes}
    reached, streams = set[str](), list(nodes[one]["outputs"])
    while streams:
        stream = streams.pop()
        for node in plan.nodes:
            if _unnumbered(node) and stream in node["inputs"] and node["name"] not in reached:
                reached.add(node["name"])
                streams += node["outputs"]
    return any(not set(nodes[name]["outputs"]).isdisjoint(nodes[two]["inputs"]) for name in reached)
