"""The settings of a master."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from millwheel.master.balancing import BalanceSettings
from millwheel.model.interval_map import initial_intervals
from millwheel.model.time import Duration, milliseconds, seconds

__all__ = ["MasterSettings"]

_DRAIN_GRACE: Final = seconds(5)
_OBSERVE_EVERY: Final = milliseconds(500)
_POLL_LOADS_EVERY: Final = seconds(2)
_BALANCING: Final = BalanceSettings()


@dataclass(frozen=True, slots=True)
class MasterSettings:
    """Settings of a master.

    ``intervals_per_computation`` and ``split_points``: see :func:`millwheel.model.interval_map.initial_intervals`.

    - ``drain_grace``: the time after the start of a drain in which injectors send the records that they still hold.
      Before it has passed, an idle topology does not count as drained.
    - ``observe_every``: how often a draining topology is checked.
    - ``poll_loads_every``: the time between two load requests to a worker, and the time limit of each answer.
    - ``balancing``: when intervals are moved, split and merged because of load.
    - ``maps_per_transaction``: the maximum number of interval maps that one transaction re-assigns or deletes.
    """

    intervals_per_computation: int = 1
    split_points: tuple[bytes, ...] = ()
    drain_grace: Duration = _DRAIN_GRACE
    observe_every: Duration = _OBSERVE_EVERY
    poll_loads_every: Duration = _POLL_LOADS_EVERY
    balancing: BalanceSettings = _BALANCING
    maps_per_transaction: int = 32

    def __post_init__(self) -> None:
        initial_intervals(self.intervals_per_computation, self.split_points)
        if self.maps_per_transaction < 1:
            raise ValueError(f"maps_per_transaction is {self.maps_per_transaction}: give a number from 1")
        if self.poll_loads_every <= 0:
            raise ValueError(f"poll_loads_every is {self.poll_loads_every} us: give a time above 0")
