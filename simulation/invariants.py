"""Checks the invariants of every core after every event of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest.mock import patch

from millwheel.authority.core import AuthorityCore
from millwheel.client.injector.core import InjectorCore
from millwheel.master.core import MasterCore
from millwheel.model.core_protocol import InvariantError
from millwheel.worker.interval import IntervalCore
from millwheel.worker.log import LogCore
from simulation.world import World

__all__ = ["invariants_checked"]

_CORES: Final[tuple[type, ...]] = (AuthorityCore, InjectorCore, IntervalCore, LogCore, MasterCore)


@contextmanager
def invariants_checked(world: World) -> Iterator[None]:
    """Inside this context, a core whose invariants do not hold after an event is a violation."""
    with ExitStack() as stack:
        for core in _CORES:
            stack.enter_context(patch.object(core, "step", _checked(vars(core)["step"], world)))
        yield


def _checked(step: Callable[[Any, Any, int], Any], world: World) -> Callable[[Any, Any, int], Any]:
    def stepped(core: Any, event: Any, now: int) -> Any:
        effects = step(core, event, now)
        try:
            core.check_invariants()
        except InvariantError as error:
            world.violated(f"{type(core).__name__} after {type(event).__name__}: {error}")
        return effects

    return stepped
