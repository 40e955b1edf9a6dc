"""The keyed count as a dataflow of Bytewax with the windows of its library.

Its clock takes the time from records alone. By default, a key's time goes on with the system's clock too. Then records
would be late where fewer come in a second than a second of event time has.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from operator import itemgetter

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.operators import windowing

from bench.peers.programs.bytewax_records import MadeRecords, SummedResults, job

__all__ = ["flow"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _moment(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


_clock = windowing.EventClock(
    ts_getter=itemgetter(0),
    wait_for_system_duration=timedelta(microseconds=job["out_of_order_us"]),
    now_getter=lambda: _EPOCH,
    to_system_utc=lambda _: None,
)
_windows = windowing.TumblingWindower(length=timedelta(seconds=1), align_to=_EPOCH)

flow = Dataflow("keyed-count")
_hits = op.input("hits", flow, MadeRecords(_moment))
# As `count_window` does it, without its step that finds the key: the records come with theirs.
_counts = windowing.fold_window(
    "count", _hits, _clock, _windows, lambda: 0, lambda count, _: count + 1, lambda one, more: one + more, ordered=False
)
op.output("results", _counts.down, SummedResults())
