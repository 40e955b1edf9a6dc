"""A draining interval: its computation was removed, and it only delivers its productions (section 4.1).

An owner takes it over like any other interval, so that no former owner runs a hook any more. It accepts no deliveries
and fires no timers. Its state, timers and holds are void. Committed productions are sent until they are ACKed, and hold
the output watermark until then. Afterwards the watermark is plus infinity permanently. A draining interval needs no
user code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from millwheel.model.incarnation import IncarnationId
from millwheel.model.time import MAX_TIMESTAMP
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.sdk.codecs import StateCodec
from millwheel.sdk.compiled import CompiledComputation
from millwheel.sdk.computation import Computation
from millwheel.sdk.context import Context
from millwheel.sdk.options import ComputationOptions
from millwheel.sdk.records import Record
from millwheel.worker.interval.core import IntervalCore
from millwheel.worker.interval.pump import IntervalPump
from millwheel.worker.interval.state import IntervalConfig
from millwheel.worker.messages import AnswerDelivery, Delivery, IntervalEffect
from millwheel.worker.owner import Handler

__all__ = ["DrainingCore"]

_NOT_OWNER = DeliveryOutcome.DELIVERY_OUTCOME_NOT_OWNER


class _Nothing(Computation[Any, None]):
    """Replaces the user's code. None of its hooks is ever called."""

    def process_record(self, ctx: Context[None], record: Record[Any]) -> None:
        raise AssertionError("a removed computation runs no hooks")


def _program(name: str, options: ComputationOptions) -> CompiledComputation:
    codec = StateCodec(
        "None", new=lambda: None, encode=bytes, check=None, default=None, decode=lambda encoded: None, takes_none=True
    )
    nothing = _Nothing()
    return CompiledComputation(
        name=name,
        computation=nothing,
        inputs={},
        input_names={},
        hook_names={},
        one_reading={},
        process_record={},
        process_timer=nothing.process_timer,
        never_late=frozenset(),
        diverted={},
        outputs={},
        derived={},
        state=codec,
        options=options,
        record_is_async=False,
        timer_is_async=False,
        handles_timers=False,
        growing=False,
    )


class DrainingPump(IntervalPump):
    """Delivers what is committed, and runs nothing."""

    def _run(self) -> None:
        """Run nothing."""

    def next_deadline(self) -> int | None:
        """The next alarm of the commits. Timers are void and need none."""
        delay = self._commits.next_alarm()
        return None if delay is None else self._state.clocks.wall_at(delay)

    def held(self) -> tuple[int, HoldKind.ValueType]:
        """Output watermark = the oldest pending production. Plus infinity after the last one."""
        pending = self._state.outbox.unacked.held.min()
        if pending < MAX_TIMESTAMP:
            return pending, HoldKind.HOLD_KIND_PRODUCTION
        return int(MAX_TIMESTAMP), HoldKind.HOLD_KIND_INPUT

    def reported_input(self, output: int) -> int:
        """It reads no input any more: its input watermark is its output watermark."""
        return output


class DrainingCore(IntervalCore):
    """The core of a draining interval, whose computation was removed."""

    def __init__(
        self,
        config: IntervalConfig,
        name: str,
        options: ComputationOptions,
        locate: Callable[[IncarnationId, bytes], str],
    ) -> None:
        """``options`` are those of the last version, because existing productions keep their kind of ids."""
        super().__init__(config, _program(name, options), {}, locate, make_pump=DrainingPump)

    def _delivery_handler(self, serving: bool) -> Handler:
        return self._refuse

    def _refuse(self, delivery: Delivery) -> Sequence[IntervalEffect]:
        """Refuse the delivery. A sender that knows of the removal discards it. Others look up the topology again."""
        message = f"computation {self.state.program.name!r} was removed"
        return [AnswerDelivery(delivery, _NOT_OWNER, (), message)]
