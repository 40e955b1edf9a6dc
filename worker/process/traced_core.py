"""A core as its host sees it, with spans of sampled records (docs/tracing.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millwheel.worker.process.event_host import HostedCore, HostedEffect
from millwheel.worker.traces import OwnerTraces

__all__ = ["TracedCore", "with_traces"]


class TracedCore:
    """Shows the events and effects of a core to its traces. The core itself decides as without traces.

    Invariant: it changes nothing of an event or an effect but ``traces``, which no core reads.
    """

    def __init__(self, core: HostedCore, traces: OwnerTraces) -> None:
        self._core = core
        self._traces = traces
        self.next_deadline = core.next_deadline
        self.check_invariants = core.check_invariants

    def step(self, event: Any, now: int) -> Sequence[HostedEffect]:
        """Process one event."""
        traces = self._traces
        traces.before(event)
        effects = self._core.step(event, now)
        if traces.active:
            for effect in effects:
                traces.after(effect)
        return effects


def with_traces(core: HostedCore, traces: OwnerTraces | None) -> HostedCore:
    """The core that a host drives. Without traces, it is the core itself."""
    return core if traces is None else TracedCore(core, traces)
