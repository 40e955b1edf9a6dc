"""State that is recovered, and claims about it. Checkers that read the journals themselves catch these mutations."""

from __future__ import annotations

from typing import Any

from millwheel.authority.core import AuthorityCore
from millwheel.authority.registry import Registry
from millwheel.model.time import MAX_TIMESTAMP
from millwheel.worker.dedup import snapshot
from millwheel.worker.interval import recovery
from millwheel.worker.log.cursors import Cursors
from simulation.mutations.base import mutation, replace

__all__: list[str] = []


@mutation("G12", "a takeover clears the timers that its predecessor's commits have cleared")
def cleared_timers_read() -> None:
    """A takeover sets timers again that have fired or were cancelled since the base."""
    replace(recovery._Reader, "_clear_timer", lambda _: lambda self, key, domain, tag, commit: None)


@mutation("G1", "a takeover knows which positions are committed, and takes no others for it")
def marks_read_high() -> None:
    """A takeover reads larger ACK marks from a base than were written."""

    def make(load_row: Any) -> Any:
        def high(tables: Any, kind: str, row: list[Any], filters: Any) -> None:
            if kind == "sequence":
                name, origin, pieces = row
                row = [name, origin, [[start, end, mark + (1 << 30), ()] for start, end, mark, _ in pieces]]
            load_row(tables, kind, row, filters)

        return high

    replace(snapshot, "_load_row", make)


@mutation("G4", "a shard of the authority knows after a restart what was removed")
def removals_forgotten() -> None:
    """A shard that restarts treats removed computations as unknown ones."""

    def make(restore: Any) -> Any:
        def restored(self: AuthorityCore, parts: Any, entries: Any) -> None:
            restore(self, parts, entries)
            self._registry.removed.clear()
            self._registry.ended.clear()

        return restored

    replace(AuthorityCore, "restore", make)


@mutation("G4", "a shard of the authority knows after a restart whom it has accepted")
def acceptances_forgotten() -> None:
    """A shard that restarts reads values, but no sequencers that were accepted since the base."""

    def make(change: Any) -> Any:
        def changed(self: Registry, what: Any) -> None:
            if getattr(what, "row", None) is not None:
                what.row.sequencer = 0
            change(self, what)

        return changed

    replace(Registry, "_change", make)


@mutation("G7", "a new owner starts from its predecessor's watermark, and from no later one")
def watermark_ahead() -> None:
    """An interval that has just opened is a second ahead of the watermark that it has read."""

    def make(settle: Any) -> Any:
        def settled(state: Any, *rest: Any) -> None:
            settle(state, *rest)
            if 0 < state.watermark < MAX_TIMESTAMP - 1_000_000:
                state.watermark += 1_000_000

        return settled

    replace(recovery, "_settle", make)


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
