"""How long the oldest work of an interval has waited: its system lag."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Final, TypeVar

from millwheel.worker.interval import IntervalCore

__all__ = ["system_lag_seconds"]

_RECEIPTS: Final = 256
"""Of so many deliveries, in the order of their receipt, the longest wait counts. One sender sends its oldest first, but
several senders send side by side."""

Kept = TypeVar("Kept")


def system_lag_seconds(core: IntervalCore, now: int) -> float:
    """Seconds for which the oldest work has waited: a record for its commit, or a production for its ACK.

    A record waits since its sender had it. So the wait goes on when the interval has another owner.
    ``now``: the wall time, in microseconds. Any thread may ask.
    """
    state = core.state
    began: list[int] = []
    # The event loop's thread may change these meanwhile.
    with suppress(RuntimeError):
        receipts = list(islice(state.intake.unfinished, _RECEIPTS))  # one step of the interpreter
        began += [one.came_at() for one in receipts]
    with suppress(RuntimeError):
        flows = [
            flow for by_journal in list(state.outbox.flows.by_consumer.values()) for flow in list(by_journal.values())
        ]
        began += [batch.since for flow in flows for batch in _first(flow.batches)]
    clocks = state.clocks
    return max(0.0, (clocks.elapsed + now - clocks.now - min(began)) / 1e6) if began else 0.0


def _first(those: Mapping[Kept, None]) -> list[Kept]:
    """The first key, if there is one."""
    return [next(iter(those))] if those else []
