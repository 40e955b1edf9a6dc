"""An interval of a removed computation: it delivers what was produced, and does nothing else (section 4.1, design §7).

Its owner takes it over as any other interval, so that no former owner runs a hook any more. It takes no
deliveries and fires no timers; state, timers and holds are void. What it had committed to be delivered is sent until it
is ACKed, and holds the output watermark until then; after that the watermark is plus infinity, for good. It needs no
code of the user's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millwheel.core.time import MAX_TIMESTAMP
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.sdk.codecs import StateCodec
from millwheel.sdk.compiled import CompiledComputation
from millwheel.sdk.computation import Computation
from millwheel.sdk.context import Context
from millwheel.sdk.model import Record
from millwheel.sdk.options import ComputationOptions
from millwheel.worker.interval.core import IntervalCore, Phase
from millwheel.worker.interval.state import IntervalConfig
from millwheel.worker.interval.subjects import hold_subject
from millwheel.worker.messages import Acknowledge, Delivery, Instruction, Report

__all__ = ["LeavingCore"]

_NOT_OWNER = DeliveryOutcome.DELIVERY_OUTCOME_NOT_OWNER


class _Nothing(Computation[Any, None]):
    """Stands where the user's code was. No hook of it is ever called."""

    def process_record(self, ctx: Context[None], record: Record[Any]) -> None:
        raise AssertionError("a removed computation runs no hooks")


def _program(name: str, options: ComputationOptions) -> CompiledComputation:
    codec = StateCodec(
        "None", new=lambda: None, encode=bytes, check=None, default=None, decode=lambda encoded: None, takes_none=True
    )
    return CompiledComputation(
        name=name,
        computation=_Nothing(),
        inputs={},
        outputs={},
        state=codec,
        options=options,
        record_is_async=False,
        timer_is_async=False,
        handles_timers=False,
    )


class LeavingCore(IntervalCore):
    """The core of an interval whose computation was removed."""

    def __init__(
        self,
        config: IntervalConfig,
        name: str,
        options: ComputationOptions,
        locate: Callable[[str, bytes], str],
    ) -> None:
        """``options``: those of the last version; its productions keep the kind of ids that they have."""
        super().__init__(config, _program(name, options), {}, locate)
        self._told: tuple[int, HoldKind.ValueType] | None = None

    def _on_delivery(self, event: Delivery) -> list[Instruction]:
        """Senders that know of the removal discard what is due to it; others are to look again."""
        message = f"computation {self.state.program.name!r} was removed"
        return [Acknowledge(event, _NOT_OWNER, (), message)]

    def _run(self) -> None:
        """Nothing is run."""

    def next_alarm(self) -> int | None:
        """Timers are void: only what its commits wait for is due some time."""
        delay = self._commits.next_alarm() if self.phase is Phase.SERVING else None
        return None if delay is None else self.state.wall_at(delay)

    def _held(self) -> tuple[int, HoldKind.ValueType]:
        """Output watermark = the oldest pending production; plus infinity after the last."""
        pending = self.state.outbox.pending.min()
        if pending < MAX_TIMESTAMP:
            return pending, HoldKind.HOLD_KIND_PRODUCTION
        return int(MAX_TIMESTAMP), HoldKind.HOLD_KIND_INPUT

    def _report(self, out: list[Instruction]) -> None:
        """Report the output watermark if it has changed, or if what holds it has."""
        state = self.state
        output, hold = self._held()
        state.output = max(output, state.output)
        if (state.output, hold) == self._told:
            return
        self._told = state.output, hold
        config = state.config
        subject = hold_subject(state, hold, state.output)
        out.append(Report(config.computation, config.keys, config.sequencer, state.output, state.output, hold, subject))
