"""A log's core against the memory store, with every effect performed when the test says so, and crashes in between."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.store.memory import MemoryStore
from millwheel.worker.dedup import DeliveryIds, PositionIds, Sender
from millwheel.worker.log import (
    CursorsAnswer,
    EndSubscription,
    Fetch,
    LogConfig,
    LogCore,
    LogEvent,
    LogInstruction,
    LogPhase,
    LogRetention,
    LogSettings,
    Publish,
    Start,
    Subscribe,
)
from millwheel.worker.messages import (
    Accepted,
    AcceptSequencer,
    Acknowledge,
    Appended,
    AppendEntry,
    CheckSequence,
    DeleteEntries,
    DeleteParts,
    Delivery,
    Deposed,
    FenceJournal,
    FlushStates,
    Opened,
    PartsRead,
    PartsWritten,
    ReadSegments,
    ReadStates,
    Report,
    SequenceChecked,
    StatesFlushed,
    StatesRead,
    Tick,
    WriteParts,
)

__all__ = ["ACKED", "FULL", "SMALL", "STREAM", "LogDriver", "Reader", "fill", "numbered", "run"]

STREAM = "windows"
LOG = "log.windows.1"
JOURNAL = "log.windows.1.j1"
ACKED = DeliveryOutcome.DELIVERY_OUTCOME_ACKED
FULL = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_FULL

SMALL = LogSettings(
    batch_bytes=400,
    segment_bytes=200,
    queue_bytes=2_000,
    memory_bytes=4_000,
    cap_bytes=1_600,
    checkpoint_entries=4,
    checkpoint_bytes=10_000,
    flush_bytes=600,
    publish_records=4,
    publish_bytes=200,
)
"""Bounds so small that a few records reach them."""

Result = TypeVar("Result")


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """The result of a coroutine of the memory store, which never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        result: Result = done.value
        return result
    raise AssertionError("the memory store suspended its caller")


class Reader:
    """A subscriber that notes what it is sent."""

    def __init__(self) -> None:
        self.published: list[Publish] = []
        self.error: RequestError | None = None

    @property
    def values(self) -> list[bytes]:
        """Every value, in the order of the responses."""
        return [value for one in self.published for value in one.values]

    @property
    def offsets(self) -> list[int]:
        """Every offset, likewise."""
        return [offset for one in self.published for offset in range(one.first, one.first + len(one.values))]


class LogDriver:
    """Performs instructions. Effects on the store wait in ``jobs`` until ``step``; nothing else waits."""

    def __init__(
        self,
        settings: LogSettings | None = None,
        retention: LogRetention | None = None,
        senders: frozenset[str] = frozenset({"injector/windows"}),
    ) -> None:
        self.store = MemoryStore()
        run(self.store.create_journal(JOURNAL))
        self.settings = settings or LogSettings()
        self.retention = retention or LogRetention()
        self.senders = senders
        self.now = 1_000_000
        self.sequencer = 0
        self.answers: list[Acknowledge] = []
        self.replies: list[CursorsAnswer] = []
        self.reports: list[Report] = []
        self.appends = 0
        self.jobs: list[LogInstruction] = []
        self.accepted: int = MIN_TIMESTAMP
        self.position = 0
        self.early: list[LogEvent] = []
        """Events that come before the journal has been read."""
        self.open()

    # Life.

    def open(self) -> None:
        """Start a new owner's core, until it serves."""
        self.sequencer += 1
        self.jobs = []
        self.core = LogCore(
            LogConfig(
                STREAM, LOG, JOURNAL, self.sequencer, self.senders, retention=self.retention, settings=self.settings
            )
        )
        start = self.core.start()
        for event in self.early:
            self.handle(event)
        self.perform(start)
        assert self.core.phase is LogPhase.SERVING, self.core.lost_because

    def crash(self, applied: bool) -> None:
        """End the owner; ``applied`` says whether what was on its way to the store still got there. Then take over."""
        if applied:
            for job in self.jobs:
                self._apply(job)
        self.open()

    # Events and time.

    def handle(self, event: LogEvent) -> None:
        """Have the core handle an event now."""
        self.perform(self.core.handle(event, self.now))

    def pass_time(self, microseconds: int) -> None:
        """Let time pass, with the alarms that fall due."""
        until = self.now + microseconds
        for _ in range(100):
            alarm = self.core.next_alarm()
            if alarm is None or alarm > until:
                break
            self.now = max(self.now, alarm)
            self.handle(Tick())
            if self.core.next_alarm() == alarm and alarm <= self.now:
                raise AssertionError(f"the alarm at {alarm} rings for ever")
        self.now = until

    def tell(self) -> None:
        """Let the watermark that was received reach the journal, and so those who listen."""
        self.pass_time(self.settings.watermark_delay)
        self.settle()

    def settle(self) -> None:
        """Perform everything until nothing is left to do."""
        for _ in range(10_000):
            if not self.jobs:
                return
            self.step()
        raise AssertionError("the log never comes to rest")

    def settle_but(self, *kinds: type) -> None:
        """Perform everything but effects of these kinds, which the store is slow with."""
        while (index := next((i for i, job in enumerate(self.jobs) if not isinstance(job, kinds)), None)) is not None:
            self.step(index)

    def step(self, index: int = 0) -> None:
        """Perform one of the waiting effects, and tell the core."""
        job = self.jobs.pop(index % len(self.jobs))
        event = self._apply(job)
        if event is not None:
            self.handle(event)

    # Conveniences.

    def deliver(
        self,
        values: list[bytes],
        timestamps: list[int] | None = None,
        ids: DeliveryIds | None = None,
        sender: Sender | None = None,
    ) -> Delivery:
        """Deliver records as an injector with positions would; returns the delivery."""
        if ids is None:
            ids = PositionIds("windows/p/0", 0, range(self.position, self.position + len(values)))
            self.position += len(values)
        sender = sender or Sender("injector/windows/p", 1, None, "injector/windows")
        times = timestamps if timestamps is not None else [self.now] * len(values)
        delivery = Delivery(LOG, JOURNAL, STREAM, sender, ids, [b""] * len(values), list(values), list(times))
        self.handle(delivery)
        return delivery

    def subscribe(
        self,
        cursor: str = "",
        start: Start | None = None,
        window: int = 1_000_000,
        resume: int | None = None,
        credit: int = 1_000_000,
    ) -> Reader:
        """A subscriber with ``credit`` fetches."""
        reader = Reader()
        begin = start or (Start.OLDEST if cursor else Start.NOW)
        self.handle(Subscribe(reader, cursor, begin, window, resume))
        if credit and reader.error is None:
            self.handle(Fetch(reader, credit))
        return reader

    def acked(self, delivery: Delivery) -> bool:
        """Whether the whole delivery was ACKed."""
        return any(
            one.delivery is delivery and one.outcome == ACKED and not list(one.remaining) for one in self.answers
        )

    def rows(self) -> set[int]:
        """First offsets of the segment rows in the store."""
        rows = run(self.store.scan_states(LOG, self.core.keys, None, 1_000_000))
        return {int.from_bytes(row.key, "big") for row in rows}

    # Performing.

    def perform(self, instructions: list[LogInstruction]) -> None:
        """Do what the core says: effects on the store wait, the rest happens."""
        for one in instructions:
            if isinstance(one, Publish):
                one.subscriber.published.append(one)
            elif isinstance(one, EndSubscription):
                one.subscriber.error = one.error
            elif isinstance(one, Acknowledge):
                self.answers.append(one)
            elif isinstance(one, CursorsAnswer):
                self.replies.append(one)
            elif isinstance(one, Report):
                self.reports.append(one)
                self.accepted = max(self.accepted, one.output)
            elif isinstance(one, FenceJournal):
                self.handle(self._open(one))
            elif isinstance(one, AcceptSequencer):
                self.handle(Accepted(self.accepted))
            elif isinstance(one, CheckSequence):
                self.handle(SequenceChecked(one.sequence, True))
            else:
                self.appends += isinstance(one, AppendEntry)
                self.jobs.append(one)

    def _open(self, fence: FenceJournal) -> Opened:
        head = run(self.store.fence(fence.journal, fence.sequencer))
        blobs = run(self.store.read_parts(fence.journal, head.parts))
        entries = run(self.store.read_entries(fence.journal, head.floor + 1, head.commit))
        return Opened(head, dict(zip(head.parts, blobs, strict=True)), entries)

    def _apply(self, job: LogInstruction) -> LogEvent | None:
        """Perform one effect on the store; the event that tells of it."""
        if isinstance(job, AppendEntry):
            run(self.store.append(job.journal, job.append))
            return Appended(job.append.commit)
        if isinstance(job, FlushStates):
            run(self.store.write_states(job.computation, job.journal, job.sequencer, job.rows))
            return StatesFlushed(job.number)
        if isinstance(job, WriteParts):
            for part, blob in job.parts.items():
                run(self.store.write_part(job.journal, part, blob))
            return PartsWritten(job.number)
        if isinstance(job, ReadStates):
            return StatesRead(job.keys, run(self.store.read_states(job.computation, job.keys)))
        if isinstance(job, ReadSegments):
            blobs = run(self.store.read_parts(job.journal, job.parts))
            return PartsRead(dict(zip(job.parts, blobs, strict=True)))
        if isinstance(job, DeleteEntries):
            run(self.store.delete_entries(job.journal, job.below))
            return None
        if isinstance(job, DeleteParts):
            run(self.store.delete_parts(job.journal, job.parts))
            return None
        raise AssertionError(f"the driver does not know {job}")

    def depose(self) -> None:
        """Another owner has taken the journal."""
        self.handle(Deposed("a successor holds the journal"))


def numbered(first: int, count: int, size: int = 20) -> list[bytes]:
    """Values that say their number, of ``size`` bytes."""
    return [b"%d" % number + b"." * (size - len(b"%d" % number)) for number in range(first, first + count)]


def fill(driver: LogDriver, first: int, count: int, size: int = 100) -> list[bytes]:
    """Deliver records one by one, each committed before the next."""
    values = numbered(first, count, size)
    for value in values:
        driver.deliver([value])
        driver.settle()
    return values
