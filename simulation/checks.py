"""The checks of every run: the guarantees, verified from outside of the product.

During a run: a journal has one writer at a time, and appends are in order (G3). Every key has one owner (G11). The
authority's values never decrease (G7). At the end: each sink has every record once for each path that leads there (G1).
Each key's steps are in one order, with watermarks that never decrease (G5, G7). User code checks what only it can see
(:mod:`simulation.blocks`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from millwheel.authority.journal import decode_entry
from millwheel.coordination.contract import KeyChange
from millwheel.model.catalog import Catalog
from millwheel.model.catalog_keys import split_key
from millwheel.model.incarnation import IncarnationId, incarnation_of_journal, injector_group
from millwheel.model.interval_map import interval_from_proto
from millwheel.model.keys import KeyInterval
from millwheel.model.stream_names import full_name
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.store.contract import TERMINAL_SEQUENCER, Append, CorruptValueError
from millwheel.worker.interval.entry import IntervalEntry
from millwheel.worker.interval.entry import decode_entry as decode_interval
from simulation.blocks import DIVIDED, OUTSIDE, SEEN, STATELESS, Item, connected_differences
from simulation.clients import ClientProgress
from simulation.expected import differences, missed_by_added, neighbour_differences
from simulation.forms import MIDDLE, SINK, life_of
from simulation.joining import Joinings
from simulation.order import JournalOrder, steps_out_of_order
from simulation.pipelines import pipeline_differences
from simulation.plan import LETTERS
from simulation.returning import stayed_differences
from simulation.store import StoreWatch, finished, whole_entry
from simulation.updates import update_differences
from simulation.windowed import window_differences
from simulation.world import World

__all__ = ["Checks"]


def _covers(intervals: list[KeyInterval]) -> bool:
    """Whether every key is in exactly one of the intervals."""
    ordered = sorted(intervals, key=lambda one: one.start)
    ends = [one.end for one in ordered]
    return bool(ordered) and [b"", *ends] == [*(one.start for one in ordered), None]


class Checks(StoreWatch):
    """All checkers of one run."""

    def __init__(self, world: World, progress: ClientProgress) -> None:
        self._world = world
        self._progress = progress
        self._owners: dict[tuple[str, int], str] = {}
        self._heads: dict[str, tuple[int, int]] = {}
        self._truncation_points: dict[str, int] = {}
        self._broadcast: dict[str, int] = {}
        self._largest: dict[str, int] = {}
        """Like ``_broadcast``, but over all incarnations of a topology."""
        self._state = catalog.TOPOLOGY_STATE_UNSPECIFIED
        self._ended_once: set[str] = set()
        """The sources that had ended when the topology came back. What stays has the end of the former life."""
        self._late: Counter[str] = Counter()
        """By computation: the late records that its journals count."""
        self._counting = {node["name"] for node in world.plan.nodes if node["late"]}
        self._aside = {world.plan.diverted(node) for node in world.plan.nodes}
        if world.plan.replays:
            self._aside.add(LETTERS)  # a replayed record that fails again has a late letter
        """Streams of late records, which are late by definition."""
        self._catalog = Catalog()
        self._order = JournalOrder(self._catalog)
        self._joinings = Joinings(world)
        world.changes.append(self._changed)
        world.broadcasts.append(self._on_broadcast)
        world.taps.deliveries.append(self._order.sent)

    # Checks during the run.

    def fenced(self, who: str, journal: str, sequencer: int) -> None:
        """Each sequencer opens a journal once, for one process."""
        before = self._owners.setdefault((journal, sequencer), who)
        if before != who:
            self._world.violated(f"{who} opened {journal} with sequencer {sequencer}, which is {before}'s (G3)")
        self._check_parents(journal)
        self._world.history.note(f"fenced {journal} with {sequencer}", who)

    def _check_parents(self, journal: str) -> None:
        """Before the owner of a child's journal opens it, the parents' journals are sealed: nothing writes to both."""
        record = self._catalog.interval_map(incarnation_of_journal(journal))
        for one in record.intervals if record is not None else ():
            for parent in one.parents if one.journal == journal else ():
                head = self._world.store.inner.head(parent.journal)
                if head is not None and head.sequencer != TERMINAL_SEQUENCER:
                    self._world.violated(f"{journal} is opened, and its parent {parent.journal} is not sealed (G11)")

    def appended(self, who: str, journal: str, append: Append) -> None:
        """Appends of a journal come in order, from its newest owner."""
        sequencer, commit = self._heads.get(journal, (0, -1))
        owner = self._owners.get((journal, append.sequencer))
        if owner != who:
            self._world.violated(
                f"{who} appended to {journal} as {append.sequencer}, which is {owner}'s sequencer (G3)"
            )
        if append.sequencer < sequencer or (commit >= 0 and append.commit != commit + 1):
            self._world.violated(
                f"{journal}: sequencer {append.sequencer} commit {append.commit} after {sequencer}, {commit} (G3)"
            )
        self._heads[journal] = (append.sequencer, append.commit)
        self._world.appended_by[journal] = append.sequencer
        self._check_parts(journal, append)
        self._check_truncation(journal, append.truncation_point)
        self._world.history.note(f"commit {append.commit} of {journal}, {len(append.entry)} bytes", who)
        if journal.startswith("authority."):
            self._check_broadcast(journal, append)
        elif (name := journal.partition(".")[0]) in self._counting:
            self._late[name] += sum(entry.counts[2] for entry in self._entries(journal, append.commit, append.commit))
        for hear in self._world.taps.appends:
            hear(journal, append)
        for disorder in self._order.appended(journal, append, self._world.store.inner):
            self._world.violated(disorder)

    def _check_truncation(self, journal: str, truncation_point: int) -> None:
        """The truncation point may pass an interval's entry only when the row of each key in it is at least as new."""
        incarnation = incarnation_of_journal(journal)
        before = self._truncation_points.get(journal, truncation_point)
        self._truncation_points[journal] = truncation_point
        if truncation_point <= before or self._catalog.computation(incarnation) is None:
            return
        inner = self._world.store.inner
        for number, entry in enumerate(self._entries(journal, before + 1, truncation_point), before + 1):
            for key, _ in entry.states:
                row = inner.states.get(incarnation, {}).get(key)
                if row is None or row.commit < number:
                    passed = f"the truncation point of {journal} is at {truncation_point}"
                    self._world.violated(f"{passed}, and key {key!r} has no row of commit {number} (G12)")

    def _check_parts(self, journal: str, append: Append) -> None:
        """The parts that an append names were acknowledged before it, and remain stored while they are named."""
        if not append.parts:
            return
        stored = finished(self._world.store.inner.list_parts(journal))
        if missing := set(append.parts).difference(stored):
            self._world.violated(f"commit {append.commit} of {journal} names {min(missing)}, which is not stored (G2)")

    def _entries(self, journal: str, first: int, last: int) -> Iterator[IntervalEntry]:
        """An interval's entries. The iteration stops at an entry with a missing part."""
        inner = self._world.store.inner
        for number, blob in enumerate(finished(inner.read_entries(journal, first, last)), first):
            try:
                yield decode_interval(whole_entry(inner, journal, number, blob), journal)
            except CorruptValueError as error:
                self._world.violated(f"{error} (G2)")
                return

    def misused(self, who: str, error: Exception) -> None:
        """A process made a store request that would lose data."""
        self._world.violated(f"{who} misused the store: {type(error).__name__}: {error}")

    def _check_broadcast(self, journal: str, append: Append) -> None:
        for computation, value in decode_entry(append.entry, journal).values.items():
            if value < self._broadcast.get(computation, value):
                before = self._broadcast[computation]
                self._world.violated(f"the watermark of {computation} goes from {before} to {value} (G7)")
            self._broadcast[computation] = value
            self._largest[computation] = max(value, self._largest.get(computation, value))

    def _on_broadcast(self, watermarks: Mapping[str, int]) -> None:
        """A broadcast value is in the authority's journal."""
        for computation, value in watermarks.items():
            known = self._largest.get(computation, int(MIN_TIMESTAMP))
            if value > known:
                self._world.violated(f"a broadcast of {computation} is at {value}, and {known} is journaled (G7)")

    def _changed(self, changes: tuple[KeyChange, ...]) -> None:
        self._catalog.apply(changes)
        self._forget_former_life()
        for incarnation in {
            IncarnationId(split_key(change.key)[1][0]) for change in changes if change.key.startswith("intervals/")
        }:
            record = self._catalog.interval_map(incarnation)
            if record is None:
                continue
            intervals = [interval_from_proto(one.keys) for one in record.intervals]
            if not _covers(intervals):
                self._world.violated(f"the intervals of {incarnation} do not cover its keys once: {intervals} (G11)")
            if len(intervals) > 1:
                DIVIDED.add(incarnation.rpartition(".")[0])

    def _forget_former_life(self) -> None:
        """When a stream comes back with its topology, its injectors' former promises no longer hold."""
        record = self._catalog.topologies.get("simulated")
        state = catalog.TOPOLOGY_STATE_UNSPECIFIED if record is None else record.state
        if self._state == catalog.TOPOLOGY_STATE_CANCELLED and state == catalog.TOPOLOGY_STATE_RUNNING:
            for source in self._world.plan.sources:
                last = self._broadcast.pop(injector_group(full_name("simulated", source["name"])), None)
                if last == MAX_TIMESTAMP:
                    self._ended_once.add(source["name"])
        self._state = state

    # Checks at the end.

    def conclude(self) -> None:
        """Check the results of the run."""
        for complaint in SEEN:
            cancelled = self._world.plan.ending == "cancel" or self._world.plan.returns_at > 0
            given_up = cancelled or complaint.startswith(f"{MIDDLE}#")
            if not given_up or not complaint.endswith(STATELESS):
                self._world.violated(complaint)
        if self._progress.returned is not None:
            since = self._progress.returned
            sent = self._progress.first_sent.items()
            self._world.plan.surely = frozenset(number for number, at in sent if at > since)
        for fault in self._world.history.faults:
            self._world.violated(f"logged: {fault}")
        found: dict[str, Counter[int]] = {}
        for sink in (*self._world.plan.sinks, *self._world.plan.added_sinks):
            records = self._progress.sunk.get(sink, {})
            if sorted(records) != list(range(len(records))):
                self._world.violated(f"stream {sink}: the offsets have gaps: {sorted(records)}")
            # The record of a letter that was replayed has gone on, or there is a new letter of it.
            gone = self._progress.replayed if sink == LETTERS else frozenset[int]()
            items = [item for offset, (_, item) in records.items() if offset not in gone]
            found[sink] = Counter(number for item in items for number in item.ids)
            self._check_promises(sink)
        self._check_sinks(found)
        self._check_added(found)
        self._check_neighbour()
        for disorder in steps_out_of_order(self._world.plan, self._progress.sunk):
            self._world.violated(disorder)
        self._check_steps([one for sunk in self._progress.sunk.values() for one in sunk.values()])
        if self._joinings.excused:
            self._world.history.note("records are late, because their computation joined behind them")

    def _check_sinks(self, found: Mapping[str, Counter[int]]) -> None:
        """Each sink has what the plan expects there."""
        plan, sunk = self._world.plan, self._progress.sunk
        changing = [item for _, (_, item) in sorted(sunk.get(SINK, {}).items())]
        for difference in (
            *differences(plan, found, self._late, self._acked()),
            *window_differences(plan, sunk),
            *pipeline_differences(plan, sunk),
            *update_differences(plan, changing),
            *OUTSIDE.complaints,
            *(() if plan.feed is None else connected_differences(plan.feed, OUTSIDE.stored)),
        ):
            self._world.violated(difference)

    def _check_added(self, found: Mapping[str, Counter[int]]) -> None:
        """A computation that was added gets every record that is sent after all workers know of it."""
        if not self._progress.added or "y0" not in self._progress.ended:
            return
        joined = self._progress.joined
        if joined is not None:
            for missed in missed_by_added(self._world.plan, joined, self._progress.first_sent, found["y0"]):
                self._world.violated(missed)

    def _check_neighbour(self) -> None:
        """The second topology's last incarnation has each record at most once.

        It also has every record that was sent after all workers knew of this incarnation.
        """
        records, progress = self._progress.sunk.get("z0"), self._progress
        if records is None:
            return
        found = Counter(number for _, item in records.values() for number in item.ids)
        joined = progress.neighbour_joined if "z0" in progress.ended else None
        if self._world.plan.stays:
            assert self._world.plan.neighbour is not None
            if not self._ended_once.isdisjoint(self._world.plan.neighbour["inputs"]):
                joined = None
            for difference in stayed_differences(self._world.plan, progress, joined, found):
                self._world.violated(difference)
            return
        for difference in neighbour_differences(self._world.plan, joined, progress.first_sent, found):
            self._world.violated(difference)

    def _acked(self) -> set[int]:
        read = self._progress.read
        readers = self._world.plan.readers
        return {one.number for by in readers for one in by.inputs[: read.get((by.stream, by.process), 0)]}

    def _check_promises(self, sink: str) -> None:
        """A watermark that a subscriber received bounds all later records, except late ones.

        Records of a computation that has joined may be late, too: see :mod:`simulation.joining`.
        """
        promised = sorted(self._progress.promised.get(sink, []), reverse=True)
        watermark = int(MIN_TIMESTAMP)
        for offset, (timestamp, item) in sorted(self._progress.sunk.get(sink, {}).items()):
            while promised and promised[-1][0] <= offset:
                watermark = max(watermark, promised.pop()[1])
            excused = item.tainted or sink in self._aside or self._joinings.excuses(item, timestamp)
            if timestamp < watermark and not excused:
                self._world.violated(f"stream {sink}, offset {offset}: {timestamp} after watermark {watermark} (G7)")

    def _check_steps(self, records: list[tuple[int, Item]]) -> None:
        """Each key's step counter is 1, 2, 3, … without a gap, and its watermarks never decrease."""
        keys: dict[tuple[str, str], dict[int, int]] = {}
        for timestamp, item in records:
            for step in item.steps:
                if step.late and not (step is item.steps[-1] and self._joinings.excuses(item, timestamp)):
                    text = f"{step.computation}, key {step.key}: step {step.number} at {step.watermark}"
                    self._world.violated(f"{text}: one of {item.ids} is late, and was not injected late (G7)")
                seen = keys.setdefault((life_of(step.computation), step.key), {})
                if seen.setdefault(step.number, step.watermark) != step.watermark:
                    self._world.violated(f"{step.computation}, key {step.key}: step {step.number} was made twice (G1)")
        for (computation, key), steps in keys.items():
            whole = not self._world.plan.ending and (computation != "extra" or "y0" in self._progress.ended)
            whole &= not self._given_up(computation)
            if whole and sorted(steps) != list(range(1, len(steps) + 1)):
                self._world.violated(f"{computation}, key {key}: steps {sorted(steps)} have gaps (G1)")
            watermarks = [steps[number] for number in sorted(steps)]
            if watermarks != sorted(watermarks):
                self._world.violated(f"{computation}, key {key}: the watermark goes back: {watermarks} (G7)")

    def _given_up(self, computation: str) -> bool:
        """Whether it was a removed incarnation of a computation with windows: its open windows are dropped."""
        record = self._catalog.topologies.get("simulated")
        form = None if record is None else self._world.forms.get(record.spec.code.digest)
        if form is None or not form.windows or not computation.startswith(f"{MIDDLE}#"):
            return False
        return not form.present or computation != f"{MIDDLE}#{form.lives}"
