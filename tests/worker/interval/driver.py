"""The driver of one interval core. The test performs the effects of the store, the network and the authority."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

import millwheel as mw
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.sdk.compiled import compile_computation
from millwheel.sdk.scope import OutputBinding, route_of_all
from millwheel.store.contract import JournalHead, PartId
from millwheel.worker import messages as m
from millwheel.worker.dedup import PositionIds, Sender
from millwheel.worker.interval import IntervalConfig, IntervalCore, IntervalSettings
from millwheel.worker.interval.commits.base_parts import write_base
from millwheel.worker.interval.commits.divided import is_entry_part
from millwheel.worker.interval.commits.spilling import Spilling
from millwheel.worker.interval.hook_meter import HookMeter
from tests.driving import SingleCoreDriver

INJECTOR = "injector/in"


class IntervalDriver(SingleCoreDriver[Any, Any]):
    """Runs ``computation``. Its input "in" has (key, what) pairs by key; its outputs are "out", "other" and "late".

    ``early``: events that come before the journal is read. The journal has ``entries`` on top of base ``parts``. The
    child of a split or merge has them on top of its ``parents``.
    """

    core: IntervalCore

    def __init__(
        self,
        computation: mw.Computation[Any, Any],
        *,
        settings: IntervalSettings | None = None,
        entries: list[bytes] | None = None,
        parts: dict[PartId, bytes] | None = None,
        early: Iterable[Any] = (),
        parents: Sequence[m.OpenedParent] = (),
        keys: KeyInterval = ALL_KEYS,
        meter: HookMeter | None = None,
        accepted: int = MIN_TIMESTAMP,
        keep: Callable[[tuple[str, str]], bool] | None = None,
        outputs: Mapping[str, Any] | None = None,
        locate: Callable[[IncarnationId, bytes], str] | None = None,
        **options: Any,
    ) -> None:
        """``accepted``: the watermark that the authority says it has broadcast for these keys.

        ``keep``: a filter before the computation. ``outputs``: other outputs. ``locate``: the journal of a consumer's
        interval that has a key.
        """
        super().__init__(now=1_000_000)
        topology = mw.Topology("test")
        given = topology.source("in", tuple[str, str])
        passed = given if keep is None else given.filter(keep)
        if outputs is None:
            outputs = {"out": str, "other": str, "late": tuple[str, str]}
        passed.key_by(lambda value: value[0]).process("test", computation, outputs, **options)
        program = compile_computation(topology, "test")
        bindings = {
            stream: OutputBinding(stream, encode, lambda value, to=sink: to, route_of_all([], sink))  # type: ignore[misc]
            for stream, encode in program.outputs.items()
            for sink in [((IncarnationId(f"sink:{stream}"), b""),)]
        }
        config = IntervalConfig(
            IncarnationId("test.1"), "test.1.j1", keys, 7, frozenset({INJECTOR}), {},
            settings=settings or IntervalSettings(), parents=tuple(one.parent for one in parents),
        )  # fmt: skip
        self.core = IntervalCore(config, program, bindings, locate or (lambda consumer, key: f"{consumer}.j"), meter)
        self.state = self.core.state
        self.entries = list(entries or [])
        self.parts = dict(parts or {})
        """The parts of the first base, and of divided entries."""
        self.position = 0
        self.output = int(MIN_TIMESTAMP)
        self.post(m.Started())
        for event in early:
            self.handle(event)
        start = max((one.head.commit for one in parents), default=0)
        head = JournalHead(7, start + len(self.entries), start, tuple(self.parts))
        self.handle(m.Opened(head, dict(self.parts), self.entries, parents))
        self.handle(m.Accepted(accepted))

    def begin(self, effect: Any) -> None:
        """Keep the effect waiting: the test performs it, with ``take``."""
        if isinstance(effect, m.Report):
            assert effect.output >= self.output, "an output watermark never goes back"
            self.output = effect.output
        self.waiting.append(effect)

    def deliver(
        self,
        *records: tuple[str, str, int],
        watermark: int | None = None,
        waited: int = 0,
        span: int = 0,
        followed: bool = False,
        sender: Sender | None = None,
    ) -> m.Delivery:
        """Deliver (key, what, timestamp) records together. ``followed``: another delivery comes next.

        ``sender``: another one than the injector.
        """
        first = self.position
        self.position += len(records)
        sender = sender or Sender("injector/in/p", 1, None, INJECTOR, watermark)
        delivery = m.Delivery(
            IncarnationId("test.1"), "test.1.j1", "in", sender,
            PositionIds("in/p" if sender.keys is None else sender.name, 0, list(range(first, self.position))),
            [key.encode() for key, _, _ in records], [msgspec.msgpack.encode((key, what)) for key, what, _ in records],
            [stamp for _, _, stamp in records], self.position, waited=waited, span=span,
            followed=followed,
        )  # fmt: skip
        self.handle(delivery)
        for check in self.take(m.CheckSequence):
            self.handle(m.SequenceChecked(check.sequence, True))
        return delivery

    def watermark(self, to: int) -> None:
        """Broadcast the injector's watermark."""
        self.handle(m.GroupWatermarks({INJECTOR: to}))

    def commit(self) -> None:
        """Acknowledge the parts of the entry in flight, and then its append."""
        for write in self.take(m.WriteParts):
            if _of_entry(write):
                self.parts.update(write.parts)
                self.handle(m.PartsWritten(write.number))
            else:
                self.waiting.append(write)
        (append,) = self.take(m.AppendEntry)
        self.entries.append(append.append.entry)
        self.handle(m.Appended(append.append.commit))

    def commit_all(self) -> int:
        """Commit until nothing is in flight; returns how often."""
        count = 0
        while any(isinstance(one, m.AppendEntry) or _of_entry(one) for one in self.waiting):
            self.commit()
            count += 1
            assert count < 1_000, "it commits for ever"
        return count

    def base(self) -> m.WriteParts:
        """The base that the core would write now."""
        return write_base(self.state, Spilling(self.state))

    @property
    def outbox_full(self) -> bool:
        """Whether the outbox is full. Then no hook that produces runs, except those that hold the watermark."""
        return self.state.outbox.unacked.records >= self.state.config.settings.outbox_records

    def sent(self) -> list[tuple[str, int]]:
        """The (value, timestamp) pairs that were sent since the last call."""
        return [
            (msgspec.msgpack.decode(value), stamp)
            for send in self.take(m.SendDelivery)
            for value, stamp in zip(send.delivery.values, send.delivery.timestamps, strict=True)
        ]


def _of_entry(effect: Any) -> bool:
    return isinstance(effect, m.WriteParts) and all(map(is_entry_part, effect.parts))
