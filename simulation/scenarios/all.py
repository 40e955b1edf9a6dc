"""All scenarios."""

from __future__ import annotations

from typing import Final

from simulation.scenarios.changing import CHANGING
from simulation.scenarios.figures import FIGURES
from simulation.scenarios.scenario import Scenario
from simulation.scenarios.times import TIMES
from simulation.scenarios.ways import WAYS

__all__ = ["SCENARIOS"]

SCENARIOS: Final[tuple[Scenario, ...]] = (*FIGURES, *CHANGING, *TIMES, *WAYS)
