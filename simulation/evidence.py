"""Compares the product's conclusions with the content of the journals at the same moment.

An ACK means that a record is committed. An ACK mark means that all records below it are committed. An acceptance means
that a report is journaled. A watermark means that its groups have reached it. Each is checked when it is sent, not
when it has had an effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from millwheel.authority.core import AuthorityCore
from millwheel.authority.journal import decode_entry, decode_part
from millwheel.authority.messages import SequencerOffered
from millwheel.coordination.contract import KeyChange
from millwheel.model import catalog_keys as keys
from millwheel.model.catalog import Catalog
from millwheel.model.deliveries import Delivery, Sender
from millwheel.model.incarnation import (
    INJECTOR_PREFIX,
    IncarnationId,
    incarnation_of_journal,
    injector_group,
    is_injector,
)
from millwheel.model.time import MAX_CLOCK_SKEW_US, MIN_TIMESTAMP
from millwheel.model.watermarks import InputWatermark
from millwheel.store.contract import Append, PartId
from millwheel.worker.dedup import BatchIds, PositionIds
from millwheel.worker.interval import IntervalCore
from millwheel.worker.interval.entry import IntervalEntry
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.log import LogCore
from millwheel.worker.log.entry import LogEntry
from millwheel.worker.log.messages import Publish
from millwheel.worker.log.state import LogState
from millwheel.worker.messages import AnswerDelivery, SendDelivery
from simulation.authority_book import ShardBook
from simulation.cached_state import differences
from simulation.forms import BEHIND, MIDDLE
from simulation.ledger import Ledger, Made
from simulation.store import finished
from simulation.updates import VersionedRoutes
from simulation.world import World

__all__ = ["Evidence"]

_AUTHORITY = "authority."


class Evidence:
    """Compares claims with journals. Every run must have some claims of each kind."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._catalog = Catalog()
        self._ledger = Ledger(self._catalog, world.store.inner)
        self._routes = VersionedRoutes(world.forms)
        self._books: dict[str, ShardBook] = {}
        self._bases: dict[str, tuple[PartId, ...]] = {}
        """By journal of the authority: the parts that its head names."""
        self._broadcast: dict[str, int] = {}
        """By group: the largest value that was ever journaled."""
        self._last: dict[str, IntervalEntry | LogEntry] = {}
        """The last entry, by journal."""
        self._appends: set[tuple[str, int, int]] = set()
        """Journal, sequencer and commit of every entry."""
        self._cursors: dict[tuple[str, str, int], int] = {}
        """By log incarnation, cursor name and cursor incarnation: the largest journaled ACK offset."""
        self._lives: dict[tuple[str, str], int] = {}
        """By log and cursor name: the current cursor incarnation."""
        kinds = ("append", "takeover", "ACK", "delivery", "acceptance", "restart", "advance", "rise", "publication")
        self._seen = dict.fromkeys(kinds, 0)
        world.changes.append(self._changed)
        world.taps.deliveries.append(self._sent)
        world.taps.appends.append(self._appended)
        world.taps.recoveries.append(self._recovered)
        world.taps.acks.append(self._acked)
        world.taps.confirmations.append(self._confirmed)
        world.taps.publications.append(self._published)
        world.taps.restores.append(self._restored)
        world.taps.acceptances.append(self._accepted)
        world.taps.advances.append(self._advanced)
        world.taps.rises.append(self._rose)

    def conclude(self) -> None:
        """A checker without any observation has checked nothing: its hook no longer fits the product."""
        for kind in [kind for kind, count in self._seen.items() if not count]:
            if kind in ("advance", "rise") and self._world.plan.ending:
                continue  # the run may end before any watermark advances
            self._world.violated(f"no {kind} was compared with the journals")
        if not self._world.plan.ending and not self._world.plan.wide:
            self._check_due()

    def _check_due(self) -> None:
        """Each production for a consumer that still exists is committed there (G1)."""
        self._ledger.follow()
        for (consumer, sequence), due in sorted(self._ledger.due.items()):
            if due and self._catalog.log_of(consumer) is None and self._checks_ids(consumer):
                claim = f"{sorted(due)} of {sequence} are due to {consumer}"
                self._world.violated(f"{claim}, and never committed there (G1)")

    def _changed(self, changes: tuple[KeyChange, ...]) -> None:
        self._routes.follow(changes)
        shape = self._catalog.shape_version
        self._catalog.apply(changes)
        if self._catalog.shape_version != shape:
            self._ledger.follow()
        self._check_retired(changes)

    def _check_retired(self, changes: tuple[KeyChange, ...]) -> None:
        """The end of a retired injector process is journaled, because the process never reports its end again (G7)."""
        for change in changes:
            kind, names = keys.split_key(change.key)
            record = self._catalog.injectors.get((names[0], names[1])) if kind == keys.INJECTORS else None
            if record is None or not record.retired:
                continue
            place = injector_group(record.stream), record.process
            if not any(place in book.finished for book in self._books.values()):
                claim = f"{record.stream}/{record.process} is retired"
                self._world.violated(f"{claim}, and its end is in no journal of the authority (G7)")

    # Journals.

    def _appended(self, journal: str, append: Append) -> None:
        self._seen["append"] += 1
        self._appends.add((journal, append.sequencer, append.commit))
        if journal.startswith(_AUTHORITY):
            entry = decode_entry(append.entry, journal)
            book = self._books.setdefault(journal, ShardBook())
            if append.parts != self._bases.get(journal, ()):
                self._bases[journal] = append.parts
                blobs = finished(self._world.store.inner.read_parts(journal, append.parts))
                book.rely_on(decode_part(blob, journal) for blob in blobs)
            book.take(entry)
            for name, value in entry.values.items():
                self._broadcast[name] = max(value, self._broadcast.get(name, value))
        elif (found := self._ledger.read(journal, append)) is not None:
            self._check_entry(journal, append, found)
            if self._world.forms and isinstance(found, IntervalEntry):
                for wrong in self._routes.judge(journal, append.sequencer, found.productions):
                    self._world.violated(wrong)
            self._last[journal] = found
            if isinstance(found, LogEntry):
                self._note_cursors(incarnation_of_journal(journal), append.commit, found)

    def _note_cursors(self, log: str, commit: int, entry: LogEntry) -> None:
        for name in entry.deleted:
            self._lives.pop((log, name), None)
        for name, acked in entry.cursors:
            life = self._lives.setdefault((log, name), commit)
            self._cursors[log, name, life] = max(acked, self._cursors.get((log, name, life), 0))

    def _confirmed(self, journal: str, sequencer: int, commit: int) -> None:
        """An owner acts on a commit as journaled only if that owner's entry is in the journal (G2)."""
        if (journal, sequencer, commit) not in self._appends:
            self._world.violated(f"{sequencer} takes commit {commit} of {journal} for journaled, and it is not (G2)")

    def _published(self, state: LogState, cursor: str, response: Publish) -> None:
        """A subscriber gets only committed records, journaled watermarks and ACKs of its cursor's incarnation."""
        self._seen["publication"] += 1
        config, last = state.config, self._last.get(state.config.journal)
        shown = f"{config.journal} shows a subscriber"
        end = last.first + len(last.values) if isinstance(last, LogEntry) else 0
        if response.next > end:
            self._world.violated(f"{shown} offset {response.next}, and its journal ends at {end} (G2)")
        if response.watermark > (last.watermark if last is not None else int(MIN_TIMESTAMP)):
            self._world.violated(f"{shown} watermark {response.watermark}, which is in no entry (G7)")
        if cursor and response.acked > self._cursors.get((config.incarnation, cursor, response.life), -1):
            self._world.violated(
                f"{shown} ACK {response.acked} of cursor {cursor}, life {response.life}, unjournaled (G2)"
            )

    def _check_entry(self, journal: str, append: Append, entry: IntervalEntry | LogEntry) -> None:
        """A journal's watermarks never decrease, under any owner.

        Its times never decrease either, unless a clock was wrong.
        """
        where = f"entry {append.commit} of {journal}, by {append.sequencer},"
        before = self._last.get(journal)
        least = self._start_of(journal) if before is None else before.watermark
        if entry.watermark < least:
            self._world.violated(f"{where} is at watermark {entry.watermark}, and {least} was before it (G7)")
        if isinstance(entry, LogEntry) and isinstance(before, LogEntry) and entry.age < before.age:
            self._world.violated(f"{where} is of age {entry.age}, and {before.age} was before it (G12)")
        if isinstance(entry, IntervalEntry) and isinstance(before, IntervalEntry) and entry.wall < before.wall:
            turned = any(process.clock.offset or process.clock.drift for process in self._world.processes.values())
            if not turned and before.wall - entry.wall < MAX_CLOCK_SKEW_US:
                self._world.violated(f"{where} is at wall time {entry.wall}, and {before.wall} was before it (G6)")

    def _start_of(self, journal: str) -> int:
        """The first watermark of a child interval: that of its slowest parent."""
        found = self._catalog.interval_map(incarnation_of_journal(journal))
        mine = [one for one in (found.intervals if found is not None else ()) if one.journal == journal]
        parents = [parent.journal for one in mine for parent in one.parents]
        marks = [last.watermark for parent in parents if (last := self._last.get(parent)) is not None]
        return min(marks) if marks and len(marks) == len(parents) else int(MIN_TIMESTAMP)

    # Owners.

    def _recovered(self, state: IntervalState | LogState) -> None:
        """The state that a new owner recovers equals what the journal says, unless a newer owner exists."""
        self._seen["takeover"] += 1
        config, store = state.config, self._world.store.inner
        head = store.head(config.journal)
        if head is not None and (head.sequencer, head.commit) == (config.sequencer, state.committed):
            for difference in differences(state, store, recovered=True):
                self._world.violated(f"{config.journal}, taken over by {config.sequencer}: {difference} (G12)")

    def _advanced(self, core: IntervalCore | LogCore) -> None:
        """An input watermark advances at most to what its groups allow."""
        self._seen["advance"] += 1
        state = core.state
        if state.watermark > state.inputs.value:
            claim = f"{state.config.journal} goes on to {state.watermark}"
            self._world.violated(f"{claim}, and its groups allow {state.inputs.value} (G7)")

    def _rose(self, inputs: InputWatermark) -> None:
        """The groups' bound is at most what the authority has journaled for each of them.

        A group that joins later does not change earlier bounds. It counts from the moment at which it joins.
        """
        self._seen["rise"] += 1
        for group in inputs.groups:
            journaled = self._broadcast.get(group, int(MIN_TIMESTAMP))
            if inputs.value > journaled:
                claim = f"a consumer's groups allow {inputs.value}"
                self._world.violated(f"{claim}, and the journal has {group} at {journaled} (G7)")

    # Deliveries.

    def _sent(self, core: IntervalCore, send: SendDelivery) -> None:
        """All records below an ACK mark are committed at the consumer.

        A position identifies the record in the journal. Between the positions of a complete delivery, each one has a
        record, which is due to another interval: the receiver takes its part of the range for committed.
        """
        self._seen["delivery"] += 1
        delivery, ids = send.delivery, send.delivery.ids
        if not isinstance(ids, PositionIds) or self._is_void(delivery.consumer):
            return
        where = f"a delivery of {ids.sequence} to {delivery.consumer}"
        if any(one >= other for one, other in zip(ids.positions, ids.positions[1:], strict=False)):
            self._world.violated(f"{where} has the positions {list(ids.positions)}: they do not rise (G9)")
        made = self._ledger.made.get(ids.sequence, {})
        if ids.complete and (left_out := self._left_out(delivery, ids, made)):
            self._world.violated(f"{where} is said to be complete, and leaves out {left_out} (G1)")
        for index, position in enumerate(ids.positions):
            said = delivery.stream, delivery.values[index], delivery.timestamps[index], delivery.keys[index]
            row = made.get(position)
            if row is None or (*row[:3], row[3].get(delivery.consumer)) != said:
                self._world.violated(f"{where} has {said} at {position}, and its journal {row} (G9)")
        due = self._ledger.due.get((delivery.consumer, ids.sequence), {})
        if due and ids.mark and self._checks_ids(delivery.consumer):
            lost = [position for position in due if position < ids.mark and position not in ids.unacked]
            if lost:
                self._world.violated(f"{where} states mark {ids.mark}, and {sorted(lost)} are not committed there (G1)")

    def _left_out(self, delivery: Delivery, ids: PositionIds, made: Mapping[int, Made]) -> list[int]:
        """Positions between those of a delivery that have no record, or one that is due to the same interval."""
        own, between = self._ledger.keys.of(delivery.journal), range(ids.positions[0], ids.positions[-1])

        def is_wrong(position: int) -> bool:
            key = None if (row := made.get(position)) is None else row[3].get(delivery.consumer)
            return position not in made or (key is not None and key in own)

        return [position for position in sorted(set(between).difference(ids.positions)) if is_wrong(position)]

    def _is_void(self, consumer: IncarnationId) -> bool:
        """Whether a consumer belongs to a former incarnation of a topology that came back.

        Its owners may not be notified of its end yet.
        """
        live = self._catalog.computation(consumer) is not None or self._catalog.log_of(consumer) is not None
        return self._world.plan.returns_at > 0 and not live

    def _is_of_former_life(self, sender: Sender) -> bool:
        """Whether an injector's stream is gone, or came back after the injector had opened.

        A reader that stays drops the ids of the former life. An entry that it seals then has effects of that life, and
        names no ids. Copies are refused by their sequencer.
        """
        if not is_injector(sender.group):
            return False
        gone = self._catalog.stream(sender.group.removeprefix(INJECTOR_PREFIX)) is None
        return gone or self._catalog.injector_floors().get(sender.group, 0) > sender.sequencer

    def _checks_ids(self, consumer: IncarnationId) -> bool:
        """Whether the consumer's commits name the ids that they consume."""
        found = self._catalog.computation(consumer)
        if found is None:
            return self._catalog.log_of(consumer) is not None
        return all(one["exactly_once"] for one in self._nodes() if one["name"] == found[1].name)

    def _joined_later(self, consumer: IncarnationId) -> bool:
        """Whether a consumer was added after records had been injected."""
        found, plan = self._catalog.computation(consumer), self._world.plan
        later = {one["name"] for one in (plan.added, plan.neighbour) if one is not None} | {MIDDLE, BEHIND}
        return found is not None and found[1].name in later

    def _nodes(self) -> Iterable[dict[str, Any]]:
        plan = self._world.plan
        return [*plan.nodes, *(one for one in (plan.added, plan.neighbour) if one is not None)]

    def _acked(self, core: IntervalCore | LogCore, answer: AnswerDelivery) -> None:
        """A record with an ACK is committed (6.1.1)."""
        if isinstance(core, IntervalCore) and not core.state.program.options.exactly_once:
            return
        self._seen["ACK"] += 1
        delivery, remaining = answer.delivery, frozenset(answer.except_for)
        if self._is_void(delivery.consumer) or self._is_of_former_life(delivery.sender):
            return
        if isinstance(delivery.ids, BatchIds) and self._joined_later(delivery.consumer):
            return  # a batch that was completed before is ACKed without a check of its records
        acked = (index for index in range(len(delivery.keys)) if index not in remaining)
        if missing := self._ledger.uncommitted(delivery, acked):
            claim = f"{core.state.config.journal} ACKs {missing} of {delivery.sender.name}"
            self._world.violated(f"{claim}, which no entry of {delivery.consumer} has (G1)")

    # The authority.

    def _restored(self, core: AuthorityCore) -> None:
        """After a restart, a shard's state equals its journal's content."""
        self._seen["restart"] += 1
        head = self._world.store.inner.head(core.journal)
        if head is not None and (head.sequencer, head.commit) == (core.sequencer, core.commit):
            for difference in self._books.get(core.journal, ShardBook()).differences(core):
                self._world.violated(f"{core.journal}, restarted with {core.sequencer}: {difference}")

    def _accepted(self, journal: str, offered: SequencerOffered) -> None:
        """An acceptance that the authority answers is in its journal, and so is the report that was sent with it."""
        self._seen["acceptance"] += 1
        group, member, sequencer = offered.group, offered.member, offered.sequencer
        book = self._books.get(journal, ShardBook())
        name = member if isinstance(member, str) else (member.start, member.end)
        if (group, name, sequencer) not in book.accepted:
            self._world.violated(f"{journal} answers {sequencer} for {name} of {group}, unjournaled (G4)")
        number = offered.report_number
        if number and book.last_report.get((group, str(member), sequencer), 0) < number:
            self._world.violated(f"{journal} answers report {number} of {member} of {group}, unjournaled (G7)")
