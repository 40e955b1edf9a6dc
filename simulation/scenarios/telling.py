"""Describes the events on the simulated cluster in plain words, as they happen.

Events come from their sources: the store's journals, the coordinator's records, the messages on the network, the hooks
of user code. The script reports no event that it has caused.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from millwheel.authority.journal import AcceptKeys
from millwheel.authority.journal import decode_entry as decode_authority
from millwheel.coordination.contract import KeyChange
from millwheel.model.catalog_keys import INTERVALS, LEADERSHIP, SHARD_LEADERSHIPS, WORKERS, split_key
from millwheel.model.incarnation import IncarnationId
from millwheel.model.interval_map import interval_from_proto
from millwheel.model.keys import KeyInterval
from millwheel.model.stream_names import local_name, owner_of
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.store.contract import TERMINAL_SEQUENCER, Append, SequencerRefusedError
from millwheel.worker.interval.entry import IntervalEntry, decode_entry
from simulation.checks import Checks
from simulation.clients import ClientProgress
from simulation.process import PROCESS
from simulation.scenarios.players import FRUIT, HOOKS, seconds_text
from simulation.world import World

__all__ = ["Event", "Telling", "person"]

_CHANGE: Final = re.compile(r"interval (\S+): (serves|released|lost|handed over)")
_ROLES: Final = {"m": "master", "t": "authority", "w": "worker"}


def person(process: object) -> str:
    """The name of a process for people: "w0.1", the first incarnation of w0, is worker 0."""
    name = str(process).partition(".")[0]
    role = _ROLES.get(name[:1]) if name[1:].isdecimal() else None
    return f"{role} {name[1:]}" if role else name


@dataclass(frozen=True, slots=True)
class Event:
    """One event at ``at`` virtual seconds: ``who`` did it to ``subject``; ``text`` describes it."""

    at: float
    who: str
    kind: str
    subject: str
    text: str


def _span(keys: KeyInterval) -> str:
    if keys.start == b"" and keys.end is None:
        return ""
    return f"[{keys.start.decode()}..{(keys.end or b'').decode()})"


class Telling(Checks):
    """Listens to all sources. It also runs the checks that run during simulated runs."""

    def __init__(self, world: World, hear: Callable[[Event], None]) -> None:
        super().__init__(world, ClientProgress())
        self._hear = hear
        self._intervals: dict[str, tuple[str, KeyInterval]] = {}
        """By journal, including former ones: the computation and the keys."""
        self._owned: dict[str, int] = {}
        self._parents: dict[str, frozenset[str]] = {}
        self._numbers: dict[int, int] = {}
        self._drawn: dict[str, int] = {}
        self._asked: dict[tuple[str, int], bytes] = {}
        self._shown: dict[str, int] = {}
        self.leader = ""
        """The leading master: a process's name."""
        world.store.watch = self
        world.changes.append(self._read_changes)
        logging.getLogger("millwheel.worker").addHandler(_Changes(self))
        HOOKS[:] = [lambda computation, text: self.tell("hook", computation.upper(), text)]

    def tell(self, kind: str, subject: str, text: str, who: object = None) -> None:
        """Publish an event; ``who`` defaults to the process whose step is running."""
        self._world.history.note(f"[{kind}] {subject}: {text}", who)
        who = PROCESS.get() if who is None else who
        self._hear(Event(self._world.loop.time(), person(who), kind, subject, text))

    # Names.

    def label(self, journal: str) -> str:
        """An interval's name: B, or B[m..) if it is a part."""
        computation, keys = self._intervals.get(journal, (journal, KeyInterval(b"", None)))
        return computation + _span(keys)

    def number(self, sequencer: int) -> str:
        """A sequencer's number. Sequencers of an interval and its parents are numbered from the scenario's start."""
        return f"sequencer {self._numbers.get(sequencer, 0)}"

    def owner(self, computation: str, key: bytes = b"") -> str:
        """The worker that owns a computation's key, according to the coordinator."""
        return self._interval(computation, key).owner.worker_id.partition(".")[0]

    def journal(self, computation: str, key: bytes = b"") -> str:
        """The journal of a computation's interval."""
        return self._interval(computation, key).journal

    def _interval(self, computation: str, key: bytes) -> catalog.IntervalRecord:
        incarnation = next(one for one in self._catalog.maps if self.name(one) == computation)
        found = self._catalog.locate(incarnation, key)
        assert found is not None, f"no interval of {computation} has the key {key!r}"
        return found

    def name(self, incarnation: str) -> str:
        found = self._catalog.computation(incarnation)
        if found is not None:
            return found[1].name.upper()
        if incarnation.startswith("injector/"):
            return incarnation.rpartition("/")[2]
        log = self._catalog.log_of(IncarnationId(incarnation))
        return f"the log of {local_name(owner_of(log.stream), log.stream)}" if log is not None else incarnation

    def begin_anew(self) -> None:
        """Restart the numbering of sequencers: the current owners' sequencers get number 1."""
        self._numbers.clear()
        for journal in self._owned:
            self._drawn[self._intervals[journal][0]] = 1
            self._numbers[self._owned[journal]] = 1

    # The coordinator.

    def _read_changes(self, changes: tuple[KeyChange, ...]) -> None:
        for change in changes:
            if change.key == LEADERSHIP:
                self.leader = (change.value or b"").decode().partition(":")[0]
                if self.leader:
                    self.tell("leader", "master", "leads from now on", self.leader)
            elif change.key.startswith(SHARD_LEADERSHIPS) and change.value:
                host = change.value.decode().partition(":")[0]
                self.tell("leader", "authority", f"serves shard {change.key.rpartition('/')[2]}", host)
            elif change.key.startswith(WORKERS) and change.value is None:
                name = change.key.rpartition("/")[2]
                self.tell("lease", name, f"the lease of {person(name)} has ended", "coordinator")
        for incarnation in {
            IncarnationId(split_key(change.key)[1][0]) for change in changes if change.key.startswith(INTERVALS)
        }:
            record = self._catalog.interval_map(incarnation)
            if record is not None:
                self._read_map(self.name(incarnation), record.intervals)

    def _read_map(self, name: str, intervals: Sequence[catalog.IntervalRecord]) -> None:
        born = [one for one in intervals if one.journal not in self._intervals]
        for one in born:
            self._intervals[one.journal] = (name, interval_from_proto(one.keys))
            self._drawn.setdefault(name, 0)
        given = [one for one in intervals if self._owned.get(one.journal) != one.sequencer]
        if given:
            number = self._drawn[name] = self._drawn[name] + 1
            for one in given:
                self._owned[one.journal] = one.sequencer
                self._numbers[one.sequencer] = number
        parents = {parent.journal: None for one in born for parent in one.parents}
        if parents:
            before = " and ".join(map(self.label, parents))
            after = " and ".join(f"{self.label(one.journal)} for {person(one.owner.worker_id)}" for one in born)
            self.tell("reshape", name, f"makes of {before}: {after}, {self.number(born[0].sequencer)}", self.leader)
        for one in given:
            if one not in born or not one.parents:
                whom = person(one.owner.worker_id) if one.HasField("owner") else "nobody"
                text = f"gives {self.label(one.journal)} to {whom}, {self.number(one.sequencer)}"
                self.tell("assign", self.label(one.journal), text, self.leader)
        for one in intervals:
            before_it, now = self._parents.get(one.journal, frozenset()), {parent.journal for parent in one.parents}
            if before_it and not now:
                parted = " and ".join(sorted(map(self.label, before_it)))
                text = f"{self.label(one.journal)} needs nothing of {parted} any more"
                self.tell("weaned", self.label(one.journal), text, self.leader)
            self._parents[one.journal] = frozenset(now)

    # The store.

    def fenced(self, who: str, journal: str, sequencer: int) -> None:
        """See :class:`simulation.store.StoreWatch`, here and below."""
        super().fenced(who, journal, sequencer)
        if journal in self._intervals:
            self.tell("fence", self.label(journal), f"fences {self.label(journal)} with {self.number(sequencer)}", who)

    def unfenced(self, who: str, journal: str, sequencer: int, error: SequencerRefusedError) -> None:
        super().unfenced(who, journal, sequencer, error)
        held = "it is sealed" if error.sequencer == TERMINAL_SEQUENCER else f"{self.number(error.sequencer)} holds it"
        text = f"refuses {person(who)}'s fence of {self.label(journal)} with {self.number(sequencer)}: {held}"
        self.tell("refused", self.label(journal), text, "store")

    def sealed(self, who: str, journal: str) -> None:
        super().sealed(who, journal)
        self.tell("seal", self.label(journal), f"seals the journal of {self.label(journal)}, for good", who)

    def asked(self, who: str, journal: str, append: Append) -> None:
        super().asked(who, journal, append)
        before, self._asked[journal, append.commit] = self._asked.get((journal, append.commit)), append.entry
        if journal in self._intervals and (content := self._content(journal, append)):
            again = ": again, the same bytes" if before == append.entry else ""
            self.tell(
                "ask", self.label(journal), f"asks the store to commit for {self.label(journal)}: {content}{again}", who
            )

    def appended(self, who: str, journal: str, append: Append) -> None:
        super().appended(who, journal, append)
        if journal.startswith("authority."):
            self._read_authority(who, journal, append)
        elif content := self._content(journal, append):
            self.tell("commit", self.label(journal), f"has committed for {self.label(journal)}: {content}", who)

    def refused(self, who: str, journal: str, append: Append, error: SequencerRefusedError) -> None:
        super().refused(who, journal, append, error)
        if journal not in self._intervals:
            return
        holder = "it is sealed" if error.sequencer == TERMINAL_SEQUENCER else f"{self.number(error.sequencer)} holds it"
        if error.sequencer == append.sequencer:
            holder = "it has that commit already"
        content = self._content(journal, append) or "an entry"
        text = (
            f"refuses what {person(who)} asks with {self.number(append.sequencer)} for {self.label(journal)}: {content}"
        )
        self.tell("refused", self.label(journal), f"{text}; {holder}", "store")

    def _content(self, journal: str, append: Append) -> str:
        computation = self._intervals.get(journal, ("the log", None))[0]
        if computation.startswith("the log"):
            return ""
        return _contents(decode_entry(append.entry, journal))

    # The authority.

    def _read_authority(self, who: str, journal: str, append: Append) -> None:
        entry = decode_authority(append.entry, journal)
        for change in entry.changes:
            if isinstance(change, AcceptKeys):
                keys = KeyInterval(change.row.start, change.row.end)
                label = self.name(change.group) + _span(keys)
                self.tell("accept", label, f"accepts {self.number(change.row.sequencer)} for {label}", who)
        for group, value in entry.values.items():
            if self._shown.get(group) != value:
                self._shown[group] = value
                name = self.name(group)
                self.tell("watermark", name, f"the low watermark of {name} is t={seconds_text(value)}", who)


class _Changes(logging.Handler):
    """Handles the log messages of workers about intervals that they open and lose."""

    def __init__(self, telling: Telling) -> None:
        super().__init__(logging.INFO)
        self._telling = telling

    def emit(self, record: logging.LogRecord) -> None:
        """Handle one log message of a worker."""
        found = _CHANGE.match(record.getMessage())
        if found is not None:
            label = self._telling.label(found[1])
            kind, text = ("serves", "serves") if found[2] == "serves" else ("lets-go", "lets go of")
            self._telling.tell(kind, label, f"{text} {label}")


def _contents(entry: IntervalEntry) -> str:
    """The content of a commit that matters to people; empty if it contains only internal changes."""
    parts = []
    taken = entry.counts[0]
    if taken:
        parts.append(f"the ids of {taken} records" if taken > 1 else "the id of 1 record")
    if entry.states:
        parts.append("the state of " + ", ".join(key.decode() for key, _ in entry.states))
    parts += [f"the timer of {row[0].decode()}, set for t={seconds_text(row[3])}" for row in entry.timers_set]
    fired = [row[0].decode() for row in entry.timers_cleared]
    if fired:
        parts.append(f"the timer of {', '.join(fired)}, gone")
    made = [str(FRUIT.decode(row[3])) for row in entry.productions]
    if made:
        parts.append(f"the production {', '.join(made)}")
    return ", ".join(parts)
