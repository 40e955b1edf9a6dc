"""Mutations of complete deliveries, whose positions are known as ranges (section 6.1.1)."""

from __future__ import annotations

from typing import Final

from millwheel.client.injector.core import InjectorCore
from millwheel.client.injector.outbound import InjectedBatch
from millwheel.client.injector.rerouting import Rerouting
from millwheel.master.services import routing
from millwheel.worker.dedup import check, renaming
from millwheel.worker.dedup.pieces import PositionPiece
from millwheel.worker.dedup.positions import PositionSource
from millwheel.worker.dedup.tables import Tables
from simulation.mutations.base import rewriting

__all__: list[str] = []

_EDGES: Final = "tests/worker/dedup/test_position_edges.py::test_a_position_is_known_exactly_if_it_is_committed"
_FEW: Final = "a test shows it by itself, in seconds; seeds were not tried"

rewriting(
    "ranges-for-all-keys",
    "G1",
    "a range says nothing of the keys of another piece",
    PositionPiece.agrees_with,
    " and self.ranges == other.ranges",
    "",
    seeds=0,
    test=_EDGES,
    why=_FEW,
)

rewriting(
    "ranges-committed-as-a-whole",
    "G1",
    "a commit says no more of a range than the records that it has",
    check.ranges_of,
    "indexes is None or len(indexes) == count",
    "indexes is None or len(indexes) > 0",
    seeds=0,
    test=_EDGES,
    why=_FEW,
)

rewriting(
    "pending-ranges-unseen",
    "G1",
    "a record of a pending range is not taken a second time",
    PositionSource,
    "pending.ranges.overlaps(whole) or ",
    "",
    seeds=0,
    test=_EDGES,
    why=_FEW,
)

rewriting(
    "ranges-not-replayed",
    "G1",
    "a new owner knows the ranges that its predecessors have committed",
    Tables.replay,
    "remember_ranges(ranges)",
    "remember_ranges(())",
    seeds=0,
    test=_EDGES,
    why=_FEW,
)

rewriting(
    "ranges-known-as-holes",
    "G1",
    "a position that a range has is no hole of a mark",
    PositionPiece.apply,
    "(h in seen or h in ranges)",
    "h in seen",
    seeds=0,
    test=_EDGES,
    why=_FEW,
)

rewriting(
    "moved-records-as-ranges",
    "G1",
    "a delivery is complete only if all of its positions were accepted for these intervals",
    Rerouting,
    "keys, first, now, since)",
    "keys, first, now, since, 0)",
    seeds=0,
    test="tests/injectors/test_core_routing.py::test_records_that_moved_are_sent_by_their_positions",
    why=_FEW,
)

rewriting(
    "gaps-as-ranges",
    "G1",
    "a delivery is complete only if a record was accepted at each position between",
    InjectorCore,
    "self._gapless[scope] = last\n",
    "self._gapless[scope] = 0\n",
    seeds=0,
    test="tests/injectors/test_complete_deliveries.py::test_positions_with_gaps_are_given_singly",
    why=_FEW,
)

rewriting(
    "parts-as-ranges",
    "G1",
    "what is sent again in part is given by its positions",
    InjectedBatch.complete,
    "sent is None and ",
    "",
    seeds=0,
    test="tests/injectors/test_complete_deliveries.py::test_a_part_of_a_batch_is_given_singly",
    why=_FEW,
)

rewriting(
    "ranges-before-their-format",
    "G12",
    "complete deliveries are stated from the cluster's format 4 on",
    routing,
    "position_ranges=known.format >= POSITION_RANGES",
    "position_ranges=True",
    seeds=0,
    test="tests/master/test_position_ranges.py::test_ranges_wait_for_their_format",
    why=_FEW,
)

rewriting(
    "restored-ranges-of-former-journals",
    "G1",
    "the ranges of a restored journal name the fresh sequences",
    renaming,
    "_renamed(ranges, names)",
    "ranges",
    seeds=0,
    test="tests/snapshots/test_renaming.py::test_renamed_ids_are_those_of_the_fresh_journals",
    why=_FEW,
)
