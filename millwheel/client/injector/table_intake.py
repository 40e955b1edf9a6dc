"""Takes small tables, and gathers them until the next turn of the event loop (section 5.2).

A table that has to wait, or that does not go by columns, is left to
:class:`~millwheel.client.injector.tables.TableAdmission`. The injector's core joins what waits longer
(:mod:`millwheel.client.injector.outbound`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millwheel.client.injector.admission import RecordAdmission
from millwheel.client.injector.ids import BatchOf
from millwheel.client.injector.messages import WatermarkDeclared
from millwheel.client.injector.session import InjectorSession
from millwheel.client.injector.small_tables import SmallTable
from millwheel.client.injector.table_buffer import TableBuffer
from millwheel.client.injector.table_forms import TableForms
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP

__all__ = ["TableIntake"]


class TableIntake:
    """The small tables that are not in the core yet.

    Invariant: its buffer or that of single records is empty. So records keep the order of the calls.

    Invariant: the core refuses nothing of the buffer, because no call would get the error. So what it may refuse is
    left to the usual way: a time that is an infinity, or a record while there is no room for it.

    Invariant: while the buffer has records, the core gets no others, and no other routing. So the room that it had for
    the first of them does not shrink, and is asked for once.
    """

    def __init__(
        self,
        session: InjectorSession,
        admission: RecordAdmission,
        forms: TableForms,
        most: Callable[[], tuple[int, int]],
    ) -> None:
        """``most``: the most records and bytes of a table's part, by the present routing."""
        self._session = session
        self._admission = admission
        self._forms = forms
        self._most = most
        self._buffer = TableBuffer()
        self._room = 0
        """For how many records the core had room when the buffer got its first one."""
        self._bounds = 0, 0
        """The most records and bytes of the buffer, by the routing that there was then."""

    def put(self, table: SmallTable, position: int | None, partition: str, batch: BatchOf | None) -> bool:
        """Buffer a table. False: it has to wait, or does not go by columns.

        Raises:
            UsageError: The positions do not rise, or the ids do not go together.
        """
        buffer, admission = self._buffer, self._admission
        count, numbered = table.count, position is None
        scope = admission.ids.scope(None, None if numbered else (), partition, batch)
        if not buffer.count:
            admission.drain()
        if self._waits(table.oldest, table.newest) or (keys := self._forms.keys_of_small(table)) is None:
            return False
        first: int = admission.ids.next if position is None else position
        if not (self._fits(table) and buffer.takes(table, keys, scope, first)):
            self.drain()
        if not buffer.count:
            self._room, self._bounds = self._session.core.room(), self._most()
            if not self._fits(table):
                return False
            self._session.core.check_positions(scope, range(first, first + count))
            asyncio.get_running_loop().call_soon(self.drain)
        buffer.add(table, keys, scope, first)
        admission.ids.next += count if numbered else 0
        return True

    def _fits(self, table: SmallTable) -> bool:
        """Whether there is room for a table behind those in the buffer."""
        count, (most, size) = self._buffer.count + table.count, self._bounds
        return count <= most and count <= self._room and self._buffer.size + table.size <= size

    def _waits(self, oldest: int, newest: int) -> bool:
        """Whether the core may not accept records of these times now, or an earlier call waits.

        Where records have spans, none are gathered: the span of a call is known during the call.
        """
        session = self._session
        if session.traced or oldest <= MIN_TIMESTAMP or newest >= MAX_TIMESTAMP:
            return True
        return self._admission.turns.calls > 0 or session.asleep or session.core.throttled(newest)

    def promise(self, watermark: int) -> bool:
        """Let a promise of the watermark follow the buffered records. False: there are none, so it need not wait."""
        buffer = self._buffer
        if buffer.count:
            buffer.promise = watermark if buffer.promise is None else max(buffer.promise, watermark)
        return bool(buffer.count)

    def drain(self) -> None:
        """Pass the buffered records to the core. A failed core drops them, and every later call raises the failure."""
        buffer, session = self._buffer, self._session
        if not buffer.count:
            return
        count = buffer.count
        promise, buffer.promise = buffer.promise, None
        if session.pass_on(buffer.take):
            self._forms.counts.by_columns += count
            if promise is not None:
                session.step(WatermarkDeclared(promise))
