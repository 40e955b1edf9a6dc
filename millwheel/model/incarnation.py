"""Incarnation ids: the names under which state, journals and low watermarks are kept.

A computation or stream log has a *name*, which people gave and which may be used again. Each of its lives is an
*incarnation*, whose id is ``NAME.NUMBER`` and never repeats. Each interval has a journal, ``INCARNATION.jNUMBER``.
"""

from __future__ import annotations

from typing import NewType

__all__ = ["IncarnationId", "incarnation_of_journal", "new_incarnation", "new_journal"]

IncarnationId = NewType("IncarnationId", str)
"""The id of one life of a computation or stream log. Never a computation's name."""


def new_incarnation(name: str, number: int) -> IncarnationId:
    """The id of a new incarnation of ``name``. Invariant: ``number`` was drawn from the cluster's sequencer counter."""
    return IncarnationId(f"{name}.{number}")


def new_journal(incarnation: IncarnationId, number: int) -> str:
    """The name of a new interval's journal. Invariant: ``number`` was drawn from the cluster's sequencer counter."""
    return f"{incarnation}.j{number}"


def incarnation_of_journal(journal: str) -> IncarnationId:
    """The incarnation that a journal belongs to. It may have been removed."""
    return IncarnationId(journal.rpartition(".j")[0])
