"""The traced records of one interval: their hooks, their commits and what they produce (docs/tracing.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from millwheel.model.deliveries import OpaqueIds, PositionIds
from millwheel.model.traced_records import TracedRecords
from millwheel.model.traces import Operation, RecordSpan, SpanSource, TraceContext
from millwheel.sdk.context import Context
from millwheel.worker.interval.entry import ProductionRow
from millwheel.worker.messages import Acknowledged, Appended, AppendEntry, Delivery, SendDelivery
from millwheel.worker.traces import OwnerTraces, ReceivedRecord

__all__ = ["HookMark", "IntervalTraces", "produced_by"]

MAX_TRACED_KEYS: Final = 1_000
"""Maximum keys of which traces are remembered, for what they produce and for their timers. The oldest go first."""
MAX_CAUSES: Final = 8
"""Maximum sampled records that the span of a timer names as its causes."""

_OPAQUE: Final = ""
"""The scope of opaque ids, which are unique everywhere. Positions have the journal's name as theirs."""


@dataclass(frozen=True, slots=True)
class HookMark:
    """Which productions of a context are those of a traced hook: ``first`` up to ``last``.

    ``last`` None: the hook is asynchronous, and all productions of its context are its own.
    """

    context: Context[Any]
    first: int
    last: int | None
    span: RecordSpan


class IntervalTraces(OwnerTraces):
    """What is known of traced records here. The subclasses of the runner and of the sealer fill it in."""

    def __init__(
        self, spans: SpanSource, computation: str, journal: str, place: Mapping[str, str | int] | None = None
    ) -> None:
        super().__init__(spans, place)
        self.computation = computation
        self.marks: dict[bytes, list[HookMark]] = {}
        """By key: traced hooks whose effects are in no commit yet."""
        self.causes: dict[bytes, list[TraceContext]] = {}
        """By key: traced records that have run since the key's last timer. Memory only: a new owner has none."""
        self.results: dict[bytes, RecordSpan] = {}
        """By key: the spans of results of panes that are in no commit yet."""
        self.sent = TracedRecords()
        """What traced hooks have produced."""
        self._journal = journal
        self._commits: dict[int, list[TraceContext]] = {}
        """By commit: traced records whose effects are in it."""
        self._appends: dict[int, list[RecordSpan]] = {}
        self._running: tuple[RecordSpan, Context[Any] | None, int] | None = None
        """The span of the running hook, and its key's context and number of productions before it."""
        self._awaited: Context[Any] | None = None
        self._error = ""

    @property
    def active(self) -> bool:
        """Whether an effect may concern a traced record."""
        return bool(self.received or len(self.sent) or self._commits)

    def before(self, event: Any) -> None:
        """The interval is about to process an event."""
        if type(event) is Acknowledged:
            self.sent.acked(event.token, event.remaining)
        elif type(event) is Appended:
            for span in self._appends.pop(event.commit, ()):
                span.end()
        else:
            super().before(event)

    def after(self, effect: Any) -> None:
        """The interval's step has had an effect."""
        if type(effect) is SendDelivery:
            delivery = effect.delivery
            ids = delivery.ids
            if isinstance(ids, PositionIds):
                known = self.sent.sending(delivery.token, ids.sequence, delivery.consumer, ids.positions)
            else:
                scope = _OPAQUE if isinstance(ids, OpaqueIds) else ids.query
                known = self.sent.sending(delivery.token, scope, delivery.consumer, ids.ids)
            delivery.traces = known
        elif type(effect) is AppendEntry:
            commit = effect.append.commit
            contexts = self._commits.pop(commit, ())
            if contexts:
                start = self.spans.start
                self._appends[commit] = [start(Operation.COMMIT, self.computation, one) for one in contexts]
        else:
            super().after(effect)

    def close(self, why: str) -> None:
        """End all spans. What was produced is sent again by the next owner, without its trace."""
        super().close(why)
        self.sent.close(why)
        for span in (one for spans in self._appends.values() for one in spans):
            span.event(why)
            span.end()
        for every in (self.marks, self.causes, self.results, self._commits, self._appends):
            every.clear()

    # Hooks.

    def begin(self, span: RecordSpan, context: Context[Any] | None) -> None:
        """A traced hook is called. ``context``: the one that its key has in the batch."""
        self._running = span, context, _produced(context)
        self._awaited, self._error = None, ""

    def failed(self, error: BaseException) -> None:
        """A hook has raised."""
        if self._running is not None:
            self._error = type(error).__qualname__

    def awaits(self, context: Context[Any]) -> None:
        """A hook has returned a coroutine, which runs later in ``context``."""
        if self._running is not None:
            self._awaited = context

    def finish(self, key: bytes, context: Context[Any] | None, called: bool) -> str | None:
        """The traced hook has returned, or was not ``called``, because its key must wait.

        Returns:
            The error that it has raised, empty if it has succeeded. None: it was not called, so it has no span.
        """
        assert self._running is not None
        (span, before, produced), self._running = self._running, None
        if not called:
            return None
        if self._error:
            span.end(self._error)
            return self._error
        awaited = self._awaited
        if awaited is not None:
            mark = HookMark(awaited, 0, None, span)
        else:
            span.end()
            if context is None:
                return ""
            mark = HookMark(context, produced if context is before else 0, _produced(context), span)
        others = self.marks.pop(key, ())
        _trim(self.marks)
        self.marks[key] = [*(one for one in others if one.context is mark.context), mark]
        return ""

    def remember_cause(self, key: bytes, context: TraceContext | None) -> None:
        """A traced record has run for a key. A later timer of the key may be its effect."""
        if context is None:
            return
        causes = self.causes.pop(key, [])
        _trim(self.causes)
        self.causes[key] = [*causes, context][-MAX_CAUSES:]

    # Windows by columns.

    def added(self, delivery: Delivery, indexes: Sequence[int]) -> None:
        """Records of one delivery were added to panes by columns. Each sampled one has a span, as of its hook."""
        chosen = set(indexes)
        for index, record in self.received.get(delivery, {}).items():
            if index in chosen:
                span = self.spans.start(Operation.PROCESS, delivery.stream, record.span.context)
                span.end()
                record.handled = True
                self.remember_cause(delivery.keys[index], span.context)

    def fired(self, key: bytes) -> None:
        """The result of a pane of the key was produced by columns. It has a span, as of a timer."""
        causes = self.causes.pop(key, None)
        if causes is not None:
            self.results[key] = span = self.spans.start(Operation.FIRE, self.computation, causes[0], links=causes[1:])
            span.end()

    # Commits.

    def consumed(self, commit: int, records: Mapping[int, ReceivedRecord], indexes: Sequence[int]) -> None:
        """Records of one delivery are consumed by a commit."""
        contexts = [one.span.context for index, one in records.items() if index in indexes]
        _trim(self._commits)
        self._commits.setdefault(commit, []).extend(one for one in contexts if one is not None)

    def produced(self, by: RecordSpan, rows: Sequence[ProductionRow]) -> None:
        """The productions of a traced hook, or of a traced pane, have their ids."""
        for position, _, stream, value, _, targets, opaque in rows:
            span = self.spans.start(Operation.SEND, stream, by.context, size=len(value))
            consumers = {consumer for consumer, _ in targets}
            if opaque:
                self.sent.add(_OPAQUE, opaque, span, consumers)
            else:
                self.sent.add(self._journal, position, span, consumers)
        by.end()


def _produced(context: Context[Any] | None) -> int:
    """How many productions a context has."""
    return 0 if context is None else produced_by(context)


def produced_by(context: Context[Any]) -> int:
    """How many productions a context has, with those that it has produced at once."""
    return (0 if context._read is None else len(context._read.values)) + len(context._productions or ())


def _trim(table: dict[Any, Any]) -> None:
    """Make room for one more key."""
    while len(table) >= MAX_TRACED_KEYS:
        del table[next(iter(table))]
