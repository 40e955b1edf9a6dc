"""Incarnation ids and group ids: the names under which state, journals and low watermarks are kept.

A computation or stream log has a *name*, which people gave and which may be used again. Each of its lives is an
*incarnation*, whose id is ``NAME.NUMBER`` and never repeats. Each interval has a journal, ``INCARNATION.jNUMBER``.

A *group* is what has one low watermark at the authority. Its members are the intervals of one incarnation, or the
injector processes of one stream.
"""

from __future__ import annotations

from typing import Final, NewType, TypeAlias

__all__ = [
    "INJECTOR_PREFIX",
    "GroupId",
    "IncarnationId",
    "incarnation_of_journal",
    "injector_group",
    "is_injector",
    "name_of_incarnation",
    "new_incarnation",
    "new_journal",
    "number_of_incarnation",
]

INJECTOR_PREFIX: Final = "injector/"
"""The prefix of the ids of injectors' groups. Their members are processes; all other members are key intervals."""

IncarnationId = NewType("IncarnationId", str)
"""The id of one life of a computation or stream log. Never a computation's name."""

GroupId: TypeAlias = str
"""The id of a group: an incarnation id, or ``injector/{stream}``."""


def new_incarnation(name: str, number: int) -> IncarnationId:
    """The id of a new incarnation of ``name``. Invariant: ``number`` was drawn from the cluster's sequencer counter."""
    return IncarnationId(f"{name}.{number}")


def name_of_incarnation(incarnation: IncarnationId | str) -> str:
    """The name that people gave."""
    return incarnation.rpartition(".")[0]


def number_of_incarnation(incarnation: IncarnationId | str) -> str:
    """The number, which no other incarnation of the cluster has."""
    return incarnation.rpartition(".")[2]


def new_journal(incarnation: IncarnationId, number: int) -> str:
    """The name of a new interval's journal. Invariant: ``number`` was drawn from the cluster's sequencer counter."""
    return f"{incarnation}.j{number}"


def incarnation_of_journal(journal: str) -> IncarnationId:
    """The incarnation that a journal belongs to. It may have been removed."""
    return IncarnationId(journal.rpartition(".j")[0])


def injector_group(stream: str) -> GroupId:
    """The id of the group of all injector processes of a stream."""
    return INJECTOR_PREFIX + stream


def is_injector(group: GroupId) -> bool:
    """Whether ``group`` is the group of a stream's injector processes."""
    return group.startswith(INJECTOR_PREFIX)
