"""Drives the core of an open injector: it passes events to the core, and performs the core's effects (section 5.2).

The driver decides nothing. Its opening, its connections and its end are in ``session.py``.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, assert_never

from millwheel.client.injector.core import InjectorCore
from millwheel.client.injector.errors import InjectorClosedError, InjectorError
from millwheel.client.injector.ids import IdKind
from millwheel.client.injector.membership import Membership
from millwheel.client.injector.messages import (
    Connect,
    DeliveryAnswered,
    Disconnect,
    InjectorEffect,
    InjectorEvent,
    KeyedRecords,
    Published,
    PublishWatermark,
    SendBatch,
    SessionFailed,
    Tick,
    WritesPending,
)
from millwheel.model.deliveries import BatchIds, Delivery, DeliveryIds, OpaqueIds, PositionIds, Sender
from millwheel.model.incarnation import injector_group
from millwheel.rpc.deliveries import answered_tokens, encode_delivery
from millwheel.rpc.delivery_connection import DeliveryConnection
from millwheel.rpc.v1 import delivery_pb2 as wire
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.rpc.watermarks import WatermarkReport
from millwheel.sdk.errors import UsageError

__all__ = ["InjectorDriver", "SenderIdentity"]

_LONG_ACK_SECONDS: Final = 5.0
"""A longer wait for ACKs gets a notice in the log."""
_NEXT_NOTICE_SECONDS: Final = 60.0
"""From one notice to the next."""

_TURNS_AFTER_TIMER: Final = 3
"""Turns of the event loop from the driver's timer to its tick.

A program's timer that rings at the same moment wakes a task in the first one. The task sends in the second one, and the
intake passes the record on in the third one. Loops have timers of whole milliseconds, so such moments are usual."""
_LATEST_TICK_SECONDS: Final = 0.002
"""A loop whose turns are long ticks sooner: so long after the deadline at the latest, or at the next turn."""


class SenderIdentity:
    """The sender of an injector's deliveries and reports."""

    def __init__(self, stream: str, process: str, sequencer: int, *, publishes: bool = True) -> None:
        """``publishes``: False if another process publishes the watermark for this sender."""
        self.sequencer = sequencer
        self.publishes = publishes
        self._stream = stream
        self._process = process
        self._group = injector_group(stream)
        self._name = f"{self._group}/{process}"

    def request(self, send: SendBatch) -> wire.DeliverRequest:
        """The message for one delivery attempt."""
        return encode_delivery(self.delivery(send), send.token)

    def report(self, published: Published) -> WatermarkReport:
        """The report of the published watermark to the authority."""
        return WatermarkReport(
            self._group, self._process, self.sequencer, published.watermark, published.watermark,
            HoldKind.HOLD_KIND_UNSPECIFIED, "", published.idle,
        )  # fmt: skip

    def delivery(self, send: SendBatch) -> Delivery:
        """The delivery of one delivery attempt."""
        watermark = send.watermark if self.publishes else None
        sender = Sender(self._name, self.sequencer, None, self._group, watermark)
        columns = send.keys, send.values, send.timestamps
        return Delivery(
            send.consumer, send.journal, self._stream, sender, _ids(send), *columns, send.token,
            waited=send.waited, span=send.span,
        )  # fmt: skip


def _ids(send: SendBatch) -> DeliveryIds:
    scope = send.scope
    if scope.kind is IdKind.POSITION:
        return PositionIds(scope.name, send.mark, send.ids, send.unacked, send.complete)
    return OpaqueIds(send.ids) if scope.kind is IdKind.OPAQUE else BatchIds(scope.name, scope.batch, send.ids)


class InjectorDriver(ABC):
    """Drives one injector's core. ``InjectorSession`` opens it and closes it."""

    membership: Membership
    traced = False
    """Whether records have spans, so that those of several calls are not gathered."""
    _loop: asyncio.AbstractEventLoop

    def __init__(self, core: InjectorCore, identity: SenderIdentity) -> None:
        self.core = core
        self.is_open = False
        self.last_report = 0
        """The number of the last report to the authority."""
        self._identity = identity
        self._links: dict[str, DeliveryConnection[SendBatch]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: int | None = None
        self._change: asyncio.Future[None] | None = None

    @property
    def delegate(self) -> bool:
        """Whether this session sends on another injector's behalf."""
        return not self._identity.publishes

    @property
    def asleep(self) -> bool:
        """Whether ``membership.wake`` must finish before a record is accepted."""
        return self.core.publication.idling or self.membership.waking

    def check(self) -> None:
        """Raise an InjectorError if the session cannot accept records, or does not yet."""
        if (stopped := self.stopped()) is not None:
            raise stopped
        if self.core.routing is None:
            # Its sequencer may be unknown: the authority would refuse a report, or never see it.
            raise self._not_open()
        self.core.check_open()

    def check_publishes(self) -> None:
        """Raise UsageError if another process publishes the watermark."""
        if not self._identity.publishes:
            raise UsageError("an injector that sends on another's behalf leaves the watermark to that one")

    def stopped(self) -> InjectorError | None:
        """Why the session has failed or is not open. None while it works."""
        if self.core.failed is None and not self.is_open:
            return self._not_open()
        return self.core.failed

    # Waits.

    async def until(
        self, done: Callable[[], bool], patience: float | None = None, what: str = "", newest: int | None = None
    ) -> None:
        """Wait until ``done()`` is true. It is checked after every event. A long wait is logged.

        Args:
            done: The condition.
            patience: Seconds to wait at most. None waits without limit.
            what: What the wait is for, for the error text.
            newest: The timestamp of the record that waits for admission, for the log.

        Raises:
            InjectorError: The time is over, or the session has failed or is closed.
        """
        if done() and self.core.failed is None:
            return
        began = self._loop.time()
        notice_at = began + _LONG_ACK_SECONDS
        try:
            async with asyncio.timeout(patience):
                while not done():
                    if (stopped := self.stopped()) is not None:
                        raise stopped
                    if self._change is None:
                        self._change = self._loop.create_future()
                    now = self._loop.time()
                    if now >= notice_at:
                        self._waits_long(now - began, newest)
                        notice_at = now + _NEXT_NOTICE_SECONDS
                    await asyncio.wait([self._change], timeout=notice_at - now)
        except TimeoutError as error:
            raise InjectorError(f"{what} of stream {self.core.stream!r} did not come within {patience:g} s") from error
        if self.core.failed is not None:
            raise self.core.failed

    def _notify(self) -> None:
        """Let every wait check its condition."""
        if self._change is not None:
            if not self._change.done():
                self._change.set_result(None)
            self._change = None

    # What ``InjectorSession`` does.

    @abstractmethod
    def _not_open(self) -> InjectorClosedError:
        """The error of a session that is not open."""

    @abstractmethod
    def _waits_long(self, seconds: float, newest: int | None) -> None:
        """A wait has lasted that long. ``newest``: the timestamp of the record that waits for admission."""

    @abstractmethod
    def _connect(self, address: str) -> None:
        """Open a connection."""

    @abstractmethod
    def _disconnect(self, address: str) -> None:
        """Close a connection."""

    # Events.

    def answered(self, response: wire.DeliverResponse) -> None:
        """A worker answered one or more deliveries."""
        self.step(DeliveryAnswered(answered_tokens(response), response.outcome, response.indexes, response.message))

    def step(self, event: InjectorEvent) -> None:
        """Pass an event to the core, and perform its effects."""
        # One more microsecond than the truncated value, so that a timer that fires sees its time as past.
        self.perform(self.core.step(event, int(self._loop.time() * 1e6) + 1))

    def fail(self, error: InjectorError) -> None:
        """Stop to accept records and to deliver them. Every later call raises the first such error."""
        self.step(SessionFailed(error))

    def pass_on(self, take: Callable[[], KeyedRecords]) -> bool:
        """Pass gathered records to the core. False: it has failed or is closed, and they are dropped.

        Invariant (G1): gathered records reach the core, or no later record is accepted. The calls that sent them have
        returned, so no call would raise the error. A later position would be ACKed, as if these records were.

        Args:
            take: Removes and returns the records.

        Raises:
            Exception: What ``take`` or the core has raised. The session has failed.
        """
        try:
            columns = take()
            usable = self.is_open and self.core.failed is None
            if usable:
                self.step(columns)
        except BaseException as error:
            self.fail(
                InjectorError(
                    f"records of stream {self.core.stream!r} could not be passed on: {error!r}; what is not ACKed is "
                    "unsure: send it again from a new injector, under the ids that it has"
                )
            )
            raise
        return usable

    def perform(self, effects: Sequence[InjectorEffect]) -> None:
        """Perform the effects of an event, in their order."""
        if not self.is_open:
            # A connection opened or received an answer while the session was closing.
            self._notify()
            return
        for effect in effects:
            match effect:
                case SendBatch():
                    self._links[effect.address].send(effect)
                case PublishWatermark(published):
                    if (reports := self.membership.reports) is not None:
                        self.last_report = reports.report(self._identity.report(published))
                case Connect(address):
                    self._connect(address)
                case Disconnect(address):
                    self._disconnect(address)
                case _:
                    assert_never(effect)
        at = self.core.next_deadline()
        if at != self._timer_at and self.is_open:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = at
            self._timer = None if at is None else self._loop.call_at(at / 1e6, self._tick)
        self._notify()

    def _tick(self, turns: int = _TURNS_AFTER_TIMER) -> None:
        """The core's deadline has come. What the program sends at this moment goes along."""
        if not self.is_open:
            return
        if turns and self._loop.time() < (self._timer_at or 0) / 1e6 + _LATEST_TICK_SECONDS:
            self._loop.call_soon(self._tick, turns - 1)
            return
        self._timer_at = None
        if waiting := {at: first.token for at, link in self._links.items() if (first := link.first_unwritten)}:
            self.step(WritesPending(waiting))
        self.step(Tick())
