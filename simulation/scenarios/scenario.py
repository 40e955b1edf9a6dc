"""What a scenario is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from simulation.scenarios.players import Node
from simulation.scenarios.stage import Stage

__all__ = ["Scenario"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A story: who plays, where, and what is done to them. ``name`` is also its file's."""

    name: str
    title: str
    text: str
    """What it shows, for people: paragraphs."""
    guarantees: str
    paper: str
    topology: str
    """The nodes, in words."""
    nodes: Sequence[Node]
    places: Mapping[str, str]
    """By computation: the worker that has it at the beginning."""
    shows: Mapping[str, str]
    """By subject, the kinds of events that belong to the story; see :class:`Stage`."""
    script: Callable[[Stage], Awaitable[None]]
    cuts: Mapping[str, str] = field(default_factory=dict)
    """By computation that is split beforehand: the key at which."""
    tuning: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Bounds of intervals and logs that differ from the usual ones."""
