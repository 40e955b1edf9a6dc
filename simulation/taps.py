"""Hooks in the product for checkers. They publish what the product decides, at the moment of the decision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from millwheel.authority.core import AuthorityCore
from millwheel.authority.shard import AuthorityShard
from millwheel.model.watermarks import InputWatermark
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.store.contract import Append
from millwheel.worker.interval import IntervalCore
from millwheel.worker.interval import core as interval_core
from millwheel.worker.interval.entry import ProductionRow
from millwheel.worker.interval.outbox import Outbox
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.log import LogCore
from millwheel.worker.log import core as log_core
from millwheel.worker.log.messages import Publish
from millwheel.worker.log.state import LogState
from millwheel.worker.log.subscribers import Subscribers
from millwheel.worker.messages import Acknowledge, Appended
from millwheel.worker.shell.host import CoreHost

__all__ = ["Taps"]

_ACKED = DeliveryOutcome.DELIVERY_OUTCOME_ACKED


class Taps:
    """Lists of listeners. Invariant: listeners only observe the product and change nothing in it."""

    def __init__(self) -> None:
        self.appends: list[Callable[[str, Append], None]] = []
        """A journal, and an append to it."""
        self.recoveries: list[Callable[[IntervalState | LogState], None]] = []
        """The state of an interval or a log that was just recovered from the store."""
        self.acks: list[Callable[[IntervalCore | LogCore, Acknowledge], None]] = []
        """A receiver's ACK, in flight to the sender."""
        self.productions: list[Callable[[Iterable[ProductionRow]], None]] = []
        """Productions of an owner that it will send soon."""
        self.confirmations: list[Callable[[str, int, int], None]] = []
        """An owner that considers its append journaled: journal, sequencer, commit."""
        self.publications: list[Callable[[LogState, str, Publish], None]] = []
        """What a log publishes to a subscriber, with the name of the subscriber's cursor (empty: it has none)."""
        self.restores: list[Callable[[AuthorityCore], None]] = []
        """A shard of the authority that was just recovered from the store."""
        self.acceptances: list[Callable[[str, str, Any, int, int], None]] = []
        """An answer of the authority: journal, computation, member, sequencer, number of the report."""
        self.advances: list[Callable[[IntervalCore | LogCore], None]] = []
        """An interval or a log whose input watermark has advanced."""
        self.rises: list[Callable[[InputWatermark], None]] = []
        """An input watermark whose bound from the senders has risen."""

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Inside this context, the listeners are called."""
        with (
            patch.object(interval_core, "recover", self._reading(vars(interval_core)["recover"])),
            patch.object(log_core, "recover", self._reading(vars(log_core)["recover"])),
            patch.object(Outbox, "add", self._producing(Outbox.add)),
            patch.object(CoreHost, "_acknowledge", self._acknowledging(CoreHost._acknowledge)),
            patch.object(IntervalCore, "_on_appended", self._confirming(IntervalCore._on_appended)),
            patch.object(LogCore, "_on_appended", self._confirming(LogCore._on_appended)),
            patch.object(AuthorityCore, "_on_journaled", self._journaling(AuthorityCore._on_journaled)),
            patch.object(Subscribers, "_response", self._publishing(Subscribers._response)),
            patch.object(AuthorityCore, "restore", self._restoring(AuthorityCore.restore)),
            patch.object(AuthorityShard, "accept", self._accepting(AuthorityShard.accept)),
            patch.object(IntervalCore, "_advance_watermark", self._advancing(IntervalCore._advance_watermark)),
            patch.object(LogCore, "_advance_watermark", self._advancing(LogCore._advance_watermark)),
            patch.object(InputWatermark, "_raise", self._rising(InputWatermark._raise)),
        ):
            yield

    def _reading(self, read: Callable[..., None]) -> Callable[..., None]:
        def recover(state: Any, opened: Any) -> None:
            read(state, opened)
            for hear in self.recoveries:
                hear(state)

        return recover

    def _producing(self, add: Callable[..., Any]) -> Callable[..., Any]:
        def added(outbox: Any, rows: Iterable[ProductionRow], *arguments: Any, **more: Any) -> Any:
            rows = list(rows)
            for hear in self.productions:
                hear(rows)
            return add(outbox, rows, *arguments, **more)

        return added

    def _acknowledging(self, acknowledge: Callable[..., None]) -> Callable[..., None]:
        def acknowledged(host: Any, answer: Acknowledge) -> None:
            if answer.outcome == _ACKED and isinstance(host.core, IntervalCore | LogCore):
                for hear in self.acks:
                    hear(host.core, answer)
            acknowledge(host, answer)

        return acknowledged

    def _confirming(self, appended: Callable[..., Any]) -> Callable[..., Any]:
        def confirmed(core: Any, event: Appended) -> Any:
            for hear in self.confirmations:
                hear(core.state.config.journal, core.state.config.sequencer, event.commit)
            return appended(core, event)

        return confirmed

    def _journaling(self, appended: Callable[..., Any]) -> Callable[..., Any]:
        def journaled(core: AuthorityCore, now: int) -> Any:
            if core._in_flight is not None:
                append = core._in_flight.append
                for hear in self.confirmations:
                    hear(core.journal, append.sequencer, append.commit)
            return appended(core, now)

        return journaled

    def _publishing(self, respond: Callable[..., Publish]) -> Callable[..., Publish]:
        def published(subscribers: Subscribers, session: Any, *columns: Any) -> Publish:
            response = respond(subscribers, session, *columns)
            for hear in self.publications:
                hear(subscribers.state, "" if session.cursor is None else session.cursor.name, response)
            return response

        return published

    def _restoring(self, restore: Callable[..., None]) -> Callable[..., None]:
        def restored(core: AuthorityCore, parts: Any, entries: Any) -> None:
            restore(core, parts, entries)
            for hear in self.restores:
                hear(core)

        return restored

    def _accepting(self, accept: Callable[..., Any]) -> Callable[..., Any]:
        async def accepted(shell: Any, computation: str, member: Any, sequencer: int, number: int = 0) -> int:
            answer: int = await accept(shell, computation, member, sequencer, number)
            for hear in self.acceptances:
                hear(shell.journal, computation, member, sequencer, number)
            return answer

        return accepted

    def _advancing(self, advance: Callable[..., None]) -> Callable[..., None]:
        def advanced(core: Any) -> None:
            before = core.state.watermark
            advance(core)
            if core.state.watermark != before:
                for hear in self.advances:
                    hear(core)

        return advanced

    def _rising(self, rise: Callable[..., bool]) -> Callable[..., bool]:
        def rose(inputs: InputWatermark) -> bool:
            risen = rise(inputs)
            if risen:
                for hear in self.rises:
                    hear(inputs)
            return risen

        return rose
