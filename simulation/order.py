"""Checks the order of one key's productions at every consumer's key and in every log: that of their commits (G15).

There are two checks. The first check uses the journals: they say which commits consumed which productions. Its rules
hold for each producing key. A commit of a consumer takes no production of an older commit after one of a younger
commit. On one stream, it takes no older production of the same commit after a younger one. Within a commit there is no
promised order between streams. The second check uses the steps that records carry to the sinks: they show in which
order one commit ran them.

Weak productions keep the order in which their owner first sent them. Invariant: of the productions that only one owner
of an interval has sent, one producing key's reach each consumer's key in that order. If another owner has sent a
production as well, it was made again after a crash or a move, and is not checked. Who could break it: a sender that
continues after a refusal, or a receiver that takes a record out of sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from millwheel.model.catalog import Catalog
from millwheel.model.incarnation import incarnation_of_journal
from millwheel.store.contract import Append
from millwheel.store.memory import MemoryStore
from millwheel.worker.dedup import OpaqueIds, decode_delta
from millwheel.worker.interval import IntervalCore
from millwheel.worker.interval.entry import IntervalEntry, ProductionRow
from millwheel.worker.interval.entry import decode_entry as decode_interval
from millwheel.worker.interval.outbox.outbox import Outbox
from millwheel.worker.log.entry import LogEntry
from millwheel.worker.log.entry import decode as decode_log
from millwheel.worker.messages import Delivery, SendDelivery
from simulation.blocks import LIBRARY, Item
from simulation.journal_keys import JournalKeys
from simulation.plan import Plan
from simulation.store import whole_entry

__all__ = ["JournalOrder", "steps_out_of_order"]

Place = tuple[str, bytes, str, bytes]
"""Producing computation (of weak productions: journal and sequencer) and key, consumer and its key."""


class JournalOrder:
    """Reads each entry as it is appended, and compares what it consumed with what was produced."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._keys = JournalKeys(catalog)
        self._appends = 0
        self._made: dict[tuple[str, int], tuple[int, str, bytes, dict[str, bytes]]] = {}
        """By sequence and position: the number of the append, stream, producing key, consumers and their keys."""
        self._last: dict[Place, int] = {}
        """The last production of each producing key that each consumer's key has consumed: the number of its append."""
        self._last_of: dict[tuple[Place, str], tuple[int, int]] = {}
        """The same by stream: append and position. Weak productions use the stream "" and have no position."""
        self._weak = WeakAttempts()

    def sent(self, core: IntervalCore, send: SendDelivery) -> None:
        """An owner sends productions, for the first time or again."""
        self._weak.sent(core.state.outbox, send.delivery)

    def appended(self, journal: str, append: Append, store: MemoryStore) -> Iterator[str]:
        """Process an entry of an interval or of a log; yields violations of the order."""
        catalog = self._catalog
        self._appends += 1
        incarnation = incarnation_of_journal(journal)
        entry: IntervalEntry | LogEntry
        if catalog.computation(incarnation) is not None:
            entry = decode_interval(whole_entry(store, journal, append.commit, append.entry), journal)
            self._produced(journal, entry.productions)
        elif any(one.incarnation == incarnation for one in catalog.logs.values()):
            entry = decode_log(append.entry, LogEntry, journal)
        else:
            return
        taken: dict[Place, dict[str, list[tuple[int, int]]]] = {}
        consumed, keys = decode_delta(entry.ids), self._keys.of(journal)
        ranges = ((sequence, whole) for sequence, found in consumed.ranges for whole in found)
        for sequence, positions in chain(consumed.positions, ranges):
            for position in positions:
                if (made := self._made.get((sequence, position))) is not None:
                    number, stream, producer, targets = made
                    if targets[incarnation] not in keys:
                        continue  # within a range, and due to another interval
                    place: Place = incarnation_of_journal(sequence), producer, incarnation, targets[incarnation]
                    taken.setdefault(place, {}).setdefault(stream, []).append((number, position))
        for _, _, ids in consumed.opaque:
            for one in ids:
                if (first := self._weak.first(one, incarnation)) is not None:
                    taken.setdefault(first[0], {}).setdefault("", []).append(first[1])
        for place, streams in taken.items():
            for disorder in self._took(place, streams):
                yield f"{journal}, commit {append.commit}: {disorder} (G15)"

    def _took(self, place: Place, streams: Mapping[str, list[tuple[int, int]]]) -> Iterator[str]:
        """Process what one commit consumes of one producing key, by stream; yields productions that come too late."""
        before = self._last.get(place, 0)
        for stream, found in streams.items():
            oldest, last = min(found), self._last_of.get((place, stream), (0, 0))
            if oldest[0] < before or oldest <= last:
                text = f"key {place[3]!r} takes {oldest} of key {place[1]!r} of {place[0]}"
                yield f"{text} after {last if oldest <= last else before}"
            self._last_of[place, stream] = max(last, *found)
            self._last[place] = max(self._last.get(place, 0), max(found)[0])

    def _produced(self, journal: str, rows: Iterable[ProductionRow]) -> None:
        for position, producer, stream, _, _, targets, opaque in rows:
            if not opaque:
                self._made[journal, position] = self._appends, stream, producer, dict(targets)


class WeakAttempts:
    """The owner and the order of each weak production's first attempt."""

    def __init__(self) -> None:
        self._producers: dict[bytes, bytes] = {}
        """By id: the producing key."""
        self._first: dict[tuple[bytes, str], tuple[tuple[str, int], Place, int]] = {}
        """By id and consumer: the owner (journal and sequencer), the place, and the number of the attempt."""
        self._remade: set[tuple[bytes, str]] = set()
        """Productions that several owners have sent."""
        self._taken: set[tuple[bytes, str]] = set()
        """Productions that have been consumed."""
        self._attempts = 0

    def sent(self, outbox: Outbox, delivery: Delivery) -> None:
        """Record the first attempt of each record."""
        sender, ids = delivery.sender, delivery.ids
        if not isinstance(ids, OpaqueIds) or sender.keys is None:
            return
        if not self._producers.keys() >= set(ids.ids):
            for batch in outbox:
                self._producers.update(zip(batch.opaque, batch.producers, strict=False))
        owner = sender.name, sender.sequencer
        for one, key in zip(ids.ids, delivery.keys, strict=True):
            self._attempts += 1
            name = one, delivery.consumer
            if (first := self._first.get(name)) is None:
                place = f"{sender.name}, {sender.sequencer}", self._producers[one], delivery.consumer, key
                self._first[name] = owner, place, self._attempts
            elif first[0] != owner:
                self._remade.add(name)

    def first(self, one: bytes, consumer: str) -> tuple[Place, tuple[int, int]] | None:
        """The place that a record goes to, and the number of its first attempt; None if its order is not checked.

        The order of a copy is not checked. A computation that is not exactly-once makes a copy when it receives its
        input again, perhaps after the consumer has forgotten the id.
        """
        name = one, consumer
        found = self._first.get(name)
        if found is None or name in self._remade or name in self._taken:
            return None
        self._taken.add(name)
        return found[1], (found[2], 0)


def steps_out_of_order(plan: Plan, sunk: Mapping[str, Mapping[int, tuple[int, Item]]]) -> Iterator[str]:
    """Compares steps and sinks: yields each key's productions that a consumer's key or a log took out of order."""
    nodes = {node["name"]: node for node in plan.nodes}
    direct = {
        (one["name"], other["name"])
        for one in plan.nodes
        for other in plan.nodes
        if not set(one["outputs"]).isdisjoint(other["inputs"]) and other["exactly_once"] and one["exactly_once"]
    }
    if plan.replays:  # a replayed record comes after younger ones of its key
        direct = {pair for pair in direct if "letters" not in nodes[pair[1]]}
    if any(_unnumbered(node) for node in plan.nodes):
        # Such a node adds no step: a record that passed it looks as if it had come directly, and its keys share the
        # path.
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
                    text = f"stream {stream}, offset {offset}: step {step.number} of {step.computation}, key {step.key}"
                    yield f"{text}, comes after step {before} (G15)"
                last[step.computation, step.key] = max(before, step.number)
    for (one_name, one_key, two_name, two_key), numbers in runs.items():
        order = [numbers[number] for number in sorted(numbers)]
        if order != sorted(order):
            text = f"{two_name}, key {two_key}, took the steps of {one_name}, key {one_key}"
            yield f"{text}, in the order {order} (G15)"


def _unnumbered(node: Mapping[str, Any]) -> bool:
    """Whether a node's block adds no step."""
    return not node["strong"] or node["kind"] in ("pass", "brief", "scatter", LIBRARY)


def _by_pass(plan: Plan, one: str, two: str) -> bool:
    """Whether a node that adds no step is also between the two."""
    nodes = {node["name"]: node for node in plan.nodes}
    reached, streams = set[str](), list(nodes[one]["outputs"])
    while streams:
        stream = streams.pop()
        for node in plan.nodes:
            if _unnumbered(node) and stream in node["inputs"] and node["name"] not in reached:
                reached.add(node["name"])
                streams += node["outputs"]
    return any(not set(nodes[name]["outputs"]).isdisjoint(nodes[two]["inputs"]) for name in reached)
