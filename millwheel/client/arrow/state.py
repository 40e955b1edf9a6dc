"""Reads the states of a computation into a table."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

import pyarrow as pa

from millwheel.client.background import BackgroundLoop
from millwheel.client.control import DEFAULT_ADDRESS
from millwheel.client.state_pages import StatePages
from millwheel.rpc.v1 import state_pb2 as wire
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.tables.columns import ValueColumn

__all__ = ["StateColumns", "read_state"]

_TIMERS: Final = pa.list_(pa.struct([("tag", pa.string()), ("timestamp_us", pa.int64()), ("wall_time", pa.bool_())]))
"""Times are numbers: a timer at the end of time is later than any date that Python or pandas has."""


class StateColumns:
    """The columns of a computation's keys.

    Args:
        computation: ``TOPOLOGY/COMPUTATION``, for errors.
        state: The form of the stored states.
    """

    def __init__(self, computation: str, state: specs.StateSchema) -> None:
        self._computation = computation
        self._state = ValueColumn(state.format, state.schema if state.HasField("schema") else None)
        self.schema = pa.schema(
            [("key", pa.string()), ("state", self._state.type), ("timers", _TIMERS), ("hold_us", pa.int64())]
        )

    def batch(self, page: Sequence[wire.ListedState]) -> pa.RecordBatch:
        """The columns of some keys; ValueDecodeError names a key whose state is not of the type."""
        keys = [one.key.decode() for one in page]
        timers = [
            [{"tag": t.tag, "timestamp_us": t.timestamp_us, "wall_time": t.wall_time} for t in one.timers]
            for one in page
        ]
        columns = [
            pa.array(keys, pa.string()),
            self._states(page, keys),
            pa.array(timers, _TIMERS),
            pa.array([one.hold_us if one.HasField("hold_us") else None for one in page], pa.int64()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _states(self, page: Sequence[wire.ListedState], keys: Sequence[str]) -> pa.Array:
        """A key that has timers alone has no state."""
        having = [number for number, one in enumerate(page) if one.state.state]
        what = f"the state of {self._computation}, key"
        found = self._state.array([page[at].state.state for at in having], [repr(keys[at]) for at in having], what)
        if len(having) == len(page):
            return found
        places: list[int | None] = [None] * len(page)
        for place, at in enumerate(having):
            places[at] = place
        return found.take(pa.array(places, pa.int64()))


def read_state(computation: str, *, address: str = DEFAULT_ADDRESS, patience: float = 60.0) -> pa.Table:
    """The states of all keys of a computation, in the order of the keys, as a table in memory.

    What a row shows is committed, and its state is as of one commit. Nothing stops meanwhile, so several rows are no
    snapshot.
    For example::

        models = read_state("zeitgeist/model").to_pandas()

    Args:
        computation: ``TOPOLOGY/COMPUTATION``, such as ``"zeitgeist/model"``.
        address: A master's address, as host or host:port; several with commas between them.
        patience: Seconds to look for an owner that cannot be reached, for example while an interval moves.

    Returns:
        A row for each key that has a state or a timer: ``key``; ``state`` by its type, null if the key has none;
        ``timers``, each with its ``tag``, its time in microseconds and whether that is wall time; and ``hold_us``, the
        key's hold of the output watermark, or null. docs/arrow.md has the types.

    Raises:
        RequestError: There is no such computation, a state is damaged, or no owner was found in time.
        ValueDecodeError: A state is not of the declared type. The error names its key.
    """

    async def read() -> pa.Table:
        async with StatePages(computation, address=address, patience=patience) as pages:
            columns = StateColumns(computation, pages.spec.state)
            async with aclosing(pages.read()) as found:
                batches = [columns.batch(page) async for page in found]
            return pa.Table.from_batches(batches, columns.schema)

    loop = BackgroundLoop(f"millwheel-reading-{computation}")
    try:
        return loop.run(read())
    finally:
        loop.stop()
