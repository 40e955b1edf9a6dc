"""State that is recovered, and claims about it. Checkers that read the journals themselves catch these mutations."""

from __future__ import annotations

from typing import Any

from millwheel.authority.core import AuthorityCore
from millwheel.authority.registry import Registry
from millwheel.model.time import MAX_TIMESTAMP
from millwheel.worker.dedup import snapshot
from millwheel.worker.interval import recovery
from millwheel.worker.interval.clocks import IntervalClocks
from millwheel.worker.log.cursors import Cursors
from simulation.mutations.base import mutation, replace, rewrite

__all__: list[str] = []


@mutation("G12", "a takeover clears the timers that its predecessor's commits have cleared")
def cleared_timers_read() -> None:
    """A takeover sets timers again that have fired or were cancelled since the base."""
    clear = "tables[domain].cancel(key, tag, None)\n"
    rewrite(recovery, f"    previous = self._state.timers.{clear}", "    return\n")


@mutation("G1", "a takeover knows which positions are committed, and takes no others for it")
def marks_read_high() -> None:
    """A takeover reads larger ACK marks from a base than were written."""
    rewrite(snapshot, "(KeyInterval(start, end), mark, holes)", "(KeyInterval(start, end), mark + (1 << 30), ())")


@mutation("G4", "a shard of the authority knows after a restart what was removed")
def removals_forgotten() -> None:
    """A shard that restarts treats removed computations as unknown ones."""
    loaded = "    for group in self.registry:"
    clear = "    self.registry.removed.clear()\n    self.registry.ended.clear()\n"
    rewrite(AuthorityCore.restore, loaded, clear + loaded)


@mutation("G4", "a shard of the authority knows after a restart whom it has accepted")
def acceptances_forgotten() -> None:
    """A shard that restarts reads values, but no sequencers that were accepted since the base."""
    first = "    if isinstance(change, AcceptKeys):"
    rewrite(Registry, first, f'    if hasattr(change, "row"):\n        change.row.sequencer = 0\n{first}')


@mutation("G7", "a new owner starts from its predecessor's watermark, and from no later one")
def watermark_ahead() -> None:
    """An interval that has just opened is a second ahead of the watermark that it has read."""
    restore = "state.clocks.restore("
    ahead = f"whole.watermark += 1_000_000 * (0 < whole.watermark < {MAX_TIMESTAMP - 1_000_000})"
    rewrite(recovery, restore, f"{ahead}\n    {restore}")


@mutation(
    "G14",
    "what is on time at one step is on time at the next",
    seeds=0,
    test="tests/worker/interval/test_takeover_order.py::test_an_owner_starts_from_what_was_reported_before_it",
    why="only a late record that comes to a new owner before the watermark does shows it: 5 of 8,400 seeds",
)
def reports_forgotten() -> None:
    """A new owner starts from the watermark in its journal, however far its predecessor had reported."""
    replace(IntervalClocks, "resume", lambda _: lambda self, output: None)


@mutation("G2", "a subscriber is shown ACKs that are in the journal")
def acks_shown_early() -> None:
    """A cursor's ACK counts as durable when it is sealed."""

    def make(seal: Any) -> Any:
        def sealed(self: Cursors, start: int, end: int) -> Any:
            changes = seal(self, start, end)
            for cursor in changes.lives:
                if cursor.acked is not None:
                    cursor.acked = cursor.sealed
            return changes

        return sealed

    replace(Cursors, "seal", make)
