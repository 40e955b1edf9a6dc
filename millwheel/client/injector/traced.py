"""An injector whose sampled records have traces: its session and its intake (docs/tracing.md)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any, Final

from millwheel.client.injector.admission import RecordAdmission
from millwheel.client.injector.ids import UserId
from millwheel.client.injector.intake import RecordIntake
from millwheel.client.injector.likelihood import TimeCheck
from millwheel.client.injector.messages import DeliveryAnswered, InjectorEvent, KeyedRecords, Limits, SendBatch
from millwheel.client.injector.session import InjectorSession
from millwheel.client.tracing import ClientTracing
from millwheel.model.traced_records import TracedRecords
from millwheel.model.traces import Operation, TraceContext
from millwheel.model.wording import refusal_name
from millwheel.rpc.delivery_connection import DeliveryConnection
from millwheel.rpc.traces import wire_traces
from millwheel.rpc.v1 import delivery_pb2 as wire

__all__ = ["TracedIntake", "TracedSession"]

_ACKED: Final = wire.DELIVERY_OUTCOME_ACKED
MAX_CALLER_RECORDS: Final = 100
"""Maximum records of one call within a span of the program that get a trace: the first ones."""


class TracedSession(InjectorSession):
    """A session that decides which records are sampled, and sends their contexts with them."""

    def __init__(
        self,
        tracing: ClientTracing,
        address: str,
        stream: str,
        process: str,
        sequencer: int,
        limits: Limits,
        patience: float,
        before_routing: Callable[[], None],
    ) -> None:
        super().__init__(address, stream, process, sequencer, limits, patience, before_routing)
        self.caller = tracing.caller
        self._sampler = tracing.sampler
        self._spans = tracing.spans.about({"millwheel.injector.process": process})
        self._sent = TracedRecords()

    traced = True

    def step(self, event: InjectorEvent) -> None:
        """Pass an event to the core, and perform its effects."""
        if type(event) is DeliveryAnswered:
            self._answered(event)
        super().step(event)
        if type(event) is KeyedRecords:
            # Nothing of it is written before the next turn of the event loop.
            self._sample(event)

    async def close(self) -> None:
        """Close all connections and stop all tasks."""
        await super().close()
        self._sent.close("injector closed")

    def _connect(self, address: str) -> None:
        self._links[address] = DeliveryConnection(address, self._request, self)

    def _request(self, send: SendBatch) -> wire.DeliverRequest:
        request = self._identity.request(send)
        if len(self._sent):
            traces = self._sent.sending(send.token, send.scope, send.consumer, send.ids)
            if traces:
                request.traces.extend(wire_traces(traces))
        return request

    def _sample(self, columns: KeyedRecords) -> None:
        count = len(columns.ids)
        parent = self.caller()
        for index in self._sampler.picks(count) if parent is None else range(min(count, MAX_CALLER_RECORDS)):
            span = self._spans.start(Operation.SEND, self.core.stream, parent, size=len(columns.values[index]))
            self._sent.add(columns.scope, columns.ids[index], span, columns.keys.keys())

    def _answered(self, event: DeliveryAnswered) -> None:
        for token in event.tokens:
            if event.outcome == _ACKED:
                self._sent.acked(token, event.indexes)
            else:
                self._sent.refused(token, refusal_name(event.outcome), event.indexes)


class TracedIntake(RecordIntake):
    """An intake that brings a record of a traced caller to the core at once, while the caller's span is known.

    The turn of the event loop that drains the buffer may run in the context of another call. It has no caller.
    """

    def __init__(self, session: TracedSession, admission: RecordAdmission, times: TimeCheck) -> None:
        super().__init__(session, admission, times)
        self._traced = session
        self._caller = session.caller

    def put(self, value: Any, timestamp: int, id_: UserId | None, position: int | None, partition: str) -> bool:
        """Buffer a record. Returns False if it has to wait, or has a fault."""
        if self._caller() is None:
            return super().put(value, timestamp, id_, position, partition)
        self.drain()
        taken = super().put(value, timestamp, id_, position, partition)
        super().drain()
        return taken

    def drain(self) -> None:
        """Pass the buffered records to the core. They were sent outside of any span."""
        with _no_caller(self._traced):
            super().drain()


@contextmanager
def _no_caller(session: TracedSession) -> Any:
    caller, session.caller = session.caller, _nobody
    try:
        yield
    finally:
        session.caller = caller


def _nobody() -> TraceContext | None:
    return None
