"""The keyed count as a dataflow of Bytewax whose logic is written by hand: no windows of its library."""

from __future__ import annotations

import bytewax.operators as op
from bytewax.dataflow import Dataflow

from bench.peers.programs.bytewax_counting import CountingLogic
from bench.peers.programs.bytewax_records import MadeRecords, SummedResults, job

__all__ = ["flow"]

_SECOND = 1_000_000


flow = Dataflow("keyed-count")
_hits = op.input("hits", flow, MadeRecords(int))
_counts = op.stateful_batch("count", _hits, lambda kept: CountingLogic(kept, _SECOND, job["out_of_order_us"]))
op.output("results", _counts, SummedResults())
