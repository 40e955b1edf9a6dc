"""A log's core against the memory store, with every effect performed when the test says so, and crashes in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, assert_never

from millwheel.model.incarnation import IncarnationId
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.store.memory import MemoryStore
from millwheel.testing.store_effects import perform_at_store, result_of
from millwheel.worker.dedup import DeliveryIds, PositionIds, Sender
from millwheel.worker.log import (
    CursorsAnswer,
    EndSubscription,
    Fetch,
    LogConfig,
    LogCore,
    LogEffect,
    LogEvent,
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
    AppendEntry,
    CheckSequence,
    Delivery,
    Deposed,
    FenceJournal,
    PeerEffect,
    ReleasePrepared,
    Report,
    SendDelivery,
    SequenceChecked,
    Started,
    StoreEffect,
    Tick,
)
from millwheel.worker.owner import OwnerPhase

__all__ = ["ACKED", "FULL", "SMALL", "STREAM", "LogDriver", "Reader", "fill", "numbered"]

STREAM = "windows"
LOG = IncarnationId("log.windows.1")
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
    """Performs effects. Those on the store wait in ``jobs`` until ``step``; nothing else waits."""

    def __init__(
        self,
        settings: LogSettings | None = None,
        retention: LogRetention | None = None,
        senders: frozenset[str] = frozenset({"injector/windows"}),
        segment_ids: int | None = None,
    ) -> None:
        """``segment_ids``: of so few ids the first owner makes a segment."""
        self.store = MemoryStore()
        result_of(self.store.create_journal(JOURNAL))
        self.settings = settings or LogSettings()
        self.retention = retention or LogRetention()
        self.senders = senders
        self.now = 1_000_000
        self.sequencer = 0
        self.answers: list[Acknowledge] = []
        self.replies: list[CursorsAnswer] = []
        self.reports: list[Report] = []
        self.appends = 0
        self.jobs: list[StoreEffect] = []
        self.accepted: int = MIN_TIMESTAMP
        self.position = 0
        self.early: list[LogEvent] = []
        """Events that come before the journal has been read."""
        self.open()
        if segment_ids is not None:
            self.core.state.dedup._segment_ids = segment_ids  # noqa: SLF001  # no setting: only tests need another

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
        start = self.core.step(Started(), self.now)
        for event in self.early:
            self.handle(event)
        self.perform(start)
        assert self.core.phase is OwnerPhase.SERVING

    def crash(self, applied: bool) -> None:
        """End the owner; ``applied`` says whether what was on its way to the store still got there. Then take over."""
        if applied:
            for job in self.jobs:
                perform_at_store(self.store, job)
        self.open()

    # Events and time.

    def handle(self, event: LogEvent) -> None:
        """Have the core handle an event now."""
        self.perform(self.core.step(event, self.now))
        self.core.check_invariants()

    def pass_time(self, microseconds: int) -> None:
        """Let time pass, with the alarms that fall due."""
        until = self.now + microseconds
        for _ in range(100):
            alarm = self.core.next_deadline()
            if alarm is None or alarm > until:
                break
            self.now = max(self.now, alarm)
            self.handle(Tick())
            if self.core.next_deadline() == alarm and alarm <= self.now:
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
        self._answer(self.jobs.pop(index % len(self.jobs)))

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

    @property
    def stored(self) -> Any:
        """The journal, as the store has it."""
        return self.store._journals[JOURNAL]  # noqa: SLF001  # only tests need it

    def rows(self) -> set[int]:
        """First offsets of the segment rows in the store."""
        rows = result_of(self.store.scan_states(LOG, self.core.keys, None, 1_000_000))
        return {int.from_bytes(row.key, "big") for row in rows}

    # Performing.

    def perform(self, effects: Sequence[LogEffect]) -> None:
        """Do what the core says: effects on the store wait, the rest happens."""
        for effect in effects:
            match effect:
                case Publish():
                    effect.subscriber.published.append(effect)
                case EndSubscription():
                    effect.subscriber.error = effect.error
                case CursorsAnswer():
                    self.replies.append(effect)
                case Acknowledge() | Report() | AcceptSequencer() | CheckSequence() | SendDelivery():
                    self._perform_for_peers(effect)
                case FenceJournal():
                    self._answer(effect)
                case ReleasePrepared():
                    raise AssertionError("nothing asked for a release")
                case _:
                    self.appends += isinstance(effect, AppendEntry)
                    self.jobs.append(effect)

    def _perform_for_peers(self, effect: PeerEffect) -> None:
        match effect:
            case Acknowledge():
                self.answers.append(effect)
            case Report():
                self.reports.append(effect)
                self.accepted = max(self.accepted, effect.output)
            case AcceptSequencer():
                self.handle(Accepted(self.accepted))
            case CheckSequence():
                self.handle(SequenceChecked(effect.sequence, True))
            case SendDelivery():
                raise AssertionError("a log sends nothing")
            case _:
                assert_never(effect)

    def _answer(self, effect: StoreEffect) -> None:
        """Perform an effect on the store, and tell the core."""
        event = perform_at_store(self.store, effect)
        if event is not None:
            self.handle(event)

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
