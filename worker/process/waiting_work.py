"""How long the oldest work of an interval has waited: its system lag."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TypeVar

from millwheel.worker.interval import IntervalCore

__all__ = ["system_lag_seconds"]

Kept = TypeVar("Kept")


def system_lag_seconds(core: IntervalCore, now: int) -> float:
    """Seconds for which the oldest work has waited: a record for its commit, or a production for its ACK.

    ``now``: the wall time, in microseconds. Any thread may ask.
    """
    state = core.state
    began: list[int] = []
    # The event loop's thread may change these meanwhile.
    with suppress(RuntimeError):
        began += [receipt.since for receipt in _first(state.intake.unfinished)]
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
