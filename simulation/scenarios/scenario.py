"""The definition of a scenario."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from simulation.scenarios.players import Node
from simulation.scenarios.stage import Stage

__all__ = ["Scenario"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scripted series of events: the computations, their workers, and what happens to them.

    ``name`` is also the name of its file.
    """

    name: str
    title: str
    text: str
    """What the scenario shows, as paragraphs for people."""
    guarantees: str
    paper: str
    topology: str
    """The topology in words."""
    nodes: Sequence[Node]
    places: Mapping[str, str]
    """By computation: its worker at the beginning."""
    shows: Mapping[str, str]
    """By subject: the kinds of events that the file shows; see :class:`Stage`."""
    script: Callable[[Stage], Awaitable[None]]
    cuts: Mapping[str, str] = field(default_factory=dict)
    """By computation that is split before the script starts: the key of the split."""
    tuning: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Bounds of intervals and logs that differ from the usual ones."""
