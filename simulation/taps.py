"""Places in the product where checkers listen: what it concludes, at the moment when it concludes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from millwheel.authority.core import AuthorityCore
from millwheel.authority.shell import AuthorityShell
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.store.contract import Append
from millwheel.worker.interval import IntervalCore
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.log import LogCore
from millwheel.worker.log.state import LogState
from millwheel.worker.messages import Acknowledge
from millwheel.worker.shell.host import CoreHost

__all__ = ["Taps"]

_ACKED = DeliveryOutcome.DELIVERY_OUTCOME_ACKED


class Taps:
    """Lists of listeners. What is heard is about the product; listeners change nothing of it."""

    def __init__(self) -> None:
        self.appends: list[Callable[[str, Append], None]] = []
        """A journal, and what was appended to it."""
        self.recoveries: list[Callable[[IntervalState | LogState], None]] = []
        """The state of an interval or a log that has just been read back."""
        self.acks: list[Callable[[IntervalCore | LogCore, Acknowledge], None]] = []
        """A receiver's ACK, on its way to the sender."""
        self.restores: list[Callable[[AuthorityCore], None]] = []
        """A shard of the authority that has just been read back."""
        self.acceptances: list[Callable[[str, str, Any, int, int], None]] = []
        """What the authority has answered: journal, computation, member, sequencer, number of the report."""
        self.advances: list[Callable[[IntervalCore | LogCore], None]] = []
        """An interval or a log whose input watermark has moved."""

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hear of it all meanwhile."""
        taps = self

        def reading(read: Callable[..., None]) -> Callable[..., None]:
            def recover(state: Any, opened: Any) -> None:
                read(state, opened)
                for hear in taps.recoveries:
                    hear(state)

            return recover

        def acknowledging(acknowledge: Callable[..., None]) -> Callable[..., None]:
            def acknowledged(host: Any, instruction: Acknowledge) -> None:
                if instruction.outcome == _ACKED and isinstance(host.core, IntervalCore | LogCore):
                    for hear in taps.acks:
                        hear(host.core, instruction)
                acknowledge(host, instruction)

            return acknowledged

        def restoring(restore: Callable[..., None]) -> Callable[..., None]:
            def restored(core: AuthorityCore, parts: Any, entries: Any) -> None:
                restore(core, parts, entries)
                for hear in taps.restores:
                    hear(core)

            return restored

        def accepting(accept: Callable[..., Any]) -> Callable[..., Any]:
            async def accepted(shell: Any, computation: str, member: Any, sequencer: int, number: int = 0) -> int:
                answer: int = await accept(shell, computation, member, sequencer, number)
                for hear in taps.acceptances:
                    hear(shell.journal, computation, member, sequencer, number)
                return answer

            return accepted

        def advancing(advance: Callable[..., None]) -> Callable[..., None]:
            def advanced(core: Any) -> None:
                before = core.state.watermark
                advance(core)
                if core.state.watermark != before:
                    for hear in taps.advances:
                        hear(core)

            return advanced

        from millwheel.worker.interval import core as interval_core
        from millwheel.worker.log import core as log_core

        with (
            patch.object(interval_core, "recover", reading(interval_core.recover)),
            patch.object(log_core, "recover", reading(log_core.recover)),
            patch.object(CoreHost, "_acknowledge", acknowledging(CoreHost._acknowledge)),
            patch.object(AuthorityCore, "restore", restoring(AuthorityCore.restore)),
            patch.object(AuthorityShell, "accept", accepting(AuthorityShell.accept)),
            patch.object(IntervalCore, "_advance_watermark", advancing(IntervalCore._advance_watermark)),
            patch.object(LogCore, "_advance_watermark", advancing(LogCore._advance_watermark)),
        ):
            yield
