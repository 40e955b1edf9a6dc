"""File injectors: the identity of lines, and the extent of a checkpoint (section 5.2)."""

from __future__ import annotations

from millwheel.injectors import files, identity, progress
from simulation.mutations.base import mutation, replace, rewrite

__all__: list[str] = []

_SEEDS = 300


@mutation("G1", "a file has the same name in every run", seeds=_SEEDS)
def files_named_anew() -> None:
    """Each run gives its files random names."""
    old = 'person=b"millwheel.file")'
    rewrite(identity.partition_name, old, old[:-1] + ', key=__import__("random").randbytes(8))')


@mutation("G1", "a checkpoint of a file goes no further than the ACKs", seeds=_SEEDS)
def checkpointed_unacked() -> None:
    """A checkpoint contains the position of the last record that was read."""
    replace(progress.FileProgress, "restart", lambda _: lambda self, acknowledged: self.offset)


@mutation(
    "G1",
    "a line of a file that grows is one when its end is there",
    seeds=20,
    test="tests/injectors/test_files.py::test_a_tail_follows_files_and_leaves_the_minimum_when_quiet",
    why="a file must be looked at between two halves of a line",
)
def half_lines() -> None:
    """The last line is read even if its end is missing."""
    rewrite(files, "ended=not growing and not file.read(1)", "ended=not file.read(1)")
