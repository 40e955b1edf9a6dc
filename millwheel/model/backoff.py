"""Back-off: how long to wait before the next attempt. Pure: callers pass the chance for the jitter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["Backoff", "jittered"]

_MAX_DOUBLINGS: Final = 60


def jittered(delay: float, chance: float) -> float:
    """Shorten ``delay`` by chance, to spread the attempts of processes that failed at the same time.

    Args:
        delay: The longest wait, in any unit.
        chance: In [0, 1].

    Returns:
        Half of ``delay`` if ``chance`` is 0. Complete ``delay`` if it is 1.
    """
    return delay * (0.5 + chance / 2)


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delay before the next attempt. It doubles from ``first`` to ``largest``, with jitter.

    Both have the same unit: seconds, unless the owner says otherwise.
    """

    first: float = 0.05
    largest: float = 2.0

    def step(self, failures: int) -> float:
        """Return the delay after ``failures`` failed attempts in succession, without jitter."""
        return min(self.largest, self.first * (1 << min(max(failures - 1, 0), _MAX_DOUBLINGS)))

    def delay(self, failures: int, chance: float) -> float:
        """Return the delay after ``failures`` failed attempts in succession.

        Args:
            failures: The number of failed attempts, at least 1.
            chance: In [0, 1].

        Returns:
            At least half of the step, so that attempts never follow each other closely.
        """
        return jittered(self.step(failures), chance)
