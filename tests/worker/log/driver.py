"""The driver of a log's core on the memory store, with crashes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millwheel.model.incarnation import IncarnationId
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.failures import RequestError
from millwheel.rpc.packed_values import PackedValues
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.store.memory import MemoryStore
from millwheel.testing.store_effects import perform_at_store, result_of
from millwheel.worker import log
from millwheel.worker import messages as m
from millwheel.worker.dedup import DeliveryIds, PositionIds, Sender
from millwheel.worker.log import LogConfig, LogCore, LogEffect, LogEvent, LogRetention, LogSettings, Start
from millwheel.worker.owner import OwnerPhase
from tests.driving import SingleCoreDriver
from tests.stored_rows import rows_of

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
"""Limits that a few records reach."""


class Reader:
    """A subscriber that notes the responses that it gets."""

    def __init__(self) -> None:
        self.published: list[log.Publish] = []
        self.error: RequestError | None = None

    @property
    def values(self) -> list[bytes]:
        """Every value, in the order of the responses."""
        return [value for one in self.published for value in one.values]

    @property
    def offsets(self) -> list[int]:
        """Every offset, in the order of the responses."""
        return [offset for one in self.published for offset in range(one.first, one.first + len(one.values))]


class LogDriver(SingleCoreDriver[LogEvent, LogEffect]):
    """Performs a log's effects: those on the store wait, except the fence. All others are performed at once."""

    core: LogCore

    def __init__(
        self,
        settings: LogSettings | None = None,
        retention: LogRetention | None = None,
        groups: frozenset[str] = frozenset({"injector/windows"}),
        stream: str = STREAM,
    ) -> None:
        super().__init__(now=1_000_000)
        self.store = MemoryStore()
        result_of(self.store.create_journal(JOURNAL))
        self.settings = settings or LogSettings()
        self.retention = retention or LogRetention()
        self.groups = groups
        self.stream = stream
        self.sequencer = 0
        self.answers: list[m.AnswerDelivery] = []
        self.replies: list[log.CursorsAnswer] = []
        self.letter_answers: list[log.LettersAnswer] = []
        self.reports: list[m.Report] = []
        self.hold_answers: list[m.SnapshotHoldAnswer] = []
        self.appends = 0
        self.accepted: int = MIN_TIMESTAMP
        self.position = 0
        self.early: list[LogEvent] = []
        """Events that come before the journal is read."""
        self.open()

    def open(self) -> None:
        """Start a new owner's core, and return when it serves."""
        self.sequencer += 1
        self.waiting = []
        names = self.stream, LOG, JOURNAL, self.sequencer, self.groups
        self.core = LogCore(LogConfig(*names, retention=self.retention, settings=self.settings))
        start = self.post(m.Started())
        for event in self.early:
            self.handle(event)
        self.perform(start)
        assert self.core.phase is OwnerPhase.SERVING

    def crash(self, applied: bool) -> None:
        """End the owner, and take over. If ``applied``, the effects in flight still reach the store."""
        for effect in self.waiting if applied else ():
            self.finish(effect)
        self.open()

    def tell(self) -> None:
        """Commit the watermark that was received, so that it is broadcast."""
        self.pass_time(self.settings.watermark_delay)
        self.run()

    def run_but(self, *kinds: type) -> None:
        """Perform all effects except these kinds, as a store that is slow for them."""
        while others := [index for index, one in enumerate(self.waiting) if not isinstance(one, kinds)]:
            self.step(others[0])

    def deliver(
        self,
        values: Sequence[bytes],
        timestamps: Sequence[int] | None = None,
        ids: DeliveryIds | None = None,
        sender: Sender | None = None,
    ) -> m.Delivery:
        """Deliver records as an injector with positions does. Returns the delivery."""
        if ids is None:
            ids = PositionIds("windows/p/0", 0, range(self.position, self.position + len(values)))
            self.position += len(values)
        sender = sender or Sender("injector/windows/p", 1, None, "injector/windows")
        times = [self.now] * len(values) if timestamps is None else list(timestamps)
        given = values if isinstance(values, PackedValues) else list(values)
        delivery = m.Delivery(LOG, JOURNAL, self.stream, sender, ids, [b""] * len(values), given, times)
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
        self.handle(log.Subscribe(reader, cursor, begin, window, resume))
        if credit and reader.error is None:
            self.handle(log.Fetch(reader, credit))
        return reader

    def acked(self, delivery: m.Delivery) -> bool:
        """Whether the whole delivery was ACKed."""
        answers = (one for one in self.answers if one.delivery is delivery)
        return any(one.outcome == ACKED and not list(one.indexes) for one in answers)

    @property
    def stored(self) -> Any:
        """The journal in the store."""
        return self.store.journals[JOURNAL]

    def rows(self) -> set[int]:
        """First offsets of the segment rows in the store."""
        return {int.from_bytes(row.key, "big") for row in rows_of(self.store, LOG)}

    def begin(self, effect: LogEffect) -> LogEvent | None:
        match effect:
            case log.Publish():
                effect.subscriber.published.append(effect)
            case log.EndSubscription():
                effect.subscriber.error = effect.error
            case log.CursorsAnswer():
                self.replies.append(effect)
            case log.LettersAnswer():
                self.letter_answers.append(effect)
            case m.AnswerDelivery():
                self.answers.append(effect)
            case m.Report():
                self.reports.append(effect)
                self.accepted = max(self.accepted, effect.output)
            case m.AcceptSequencer():
                return m.Accepted(self.accepted)
            case m.CheckSequence():
                return m.SequenceChecked(effect.sequence, True)
            case m.FenceJournal():
                return self.finish(effect)
            case m.SnapshotHoldAnswer():
                self.hold_answers.append(effect)
            case m.SendDelivery() | m.ReleasePrepared():
                raise AssertionError(f"nothing asked a log for {effect}")
            case _:
                self.appends += isinstance(effect, m.AppendEntry)
                self.waiting.append(effect)
        return None

    def finish(self, effect: Any) -> LogEvent | None:
        return perform_at_store(self.store, effect)


def numbered(first: int, count: int, size: int = 20) -> list[bytes]:
    """Values of ``size`` bytes, each with its number."""
    return [b"%d" % number + b"." * (size - len(b"%d" % number)) for number in range(first, first + count)]


def fill(driver: LogDriver, first: int, count: int, size: int = 100) -> list[bytes]:
    """Deliver records one by one, each committed before the next."""
    values = numbered(first, count, size)
    for value in values:
        driver.deliver([value])
        driver.run()
    return values
