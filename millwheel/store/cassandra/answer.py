"""The answer to one request, of one or several pages, as an asyncio awaitable."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

from cassandra import OperationTimedOut
from cassandra.cluster import ResponseFuture

from millwheel.store.cassandra.connection import LoopThread

__all__ = ["QueryResult", "Row"]

Row = tuple[Any, ...]


class QueryResult:
    """Await this object for the rows of all pages, or the driver's error. Call :meth:`leave` in the end."""

    def __init__(self, timeout: float) -> None:
        """``timeout``: seconds for each page after the first. The driver itself limits only the first page."""
        self._home = LoopThread.here()
        self._timeout = timeout
        self._rows: list[Row] = []
        self._future: asyncio.Future[list[Row]] = self._home.loop.create_future()
        self._late: asyncio.TimerHandle | None = None
        self._response: ResponseFuture | None = None

    def follow(self, response: ResponseFuture) -> None:
        """Take the rows and the error from ``response``."""
        self._response = response
        response.add_callbacks(self._arrived, self.end)

    def __await__(self) -> Generator[Any, None, list[Row]]:
        return self._future.__await__()

    def end(self, error: BaseException | None) -> None:
        """Complete the result, with ``error`` or with the rows so far. Idempotent. Any thread may call this."""
        try:
            self._home.call(self._settle, error)
        except RuntimeError:
            """The loop is closed, so no task waits for the result."""

    def leave(self) -> None:
        """Release the response. No caller waits for it any more."""
        if self._late is not None:
            self._late.cancel()
        if self._response is not None:
            # The response and its callbacks refer to each other. Without this call, each request would leave a cycle of
            # about forty objects, with all sent data, to the garbage collector.
            self._response.clear_callbacks()

    def _arrived(self, page: list[Row] | None) -> None:
        response = self._response
        assert response is not None, "it answers what was sent"
        self._rows.extend(page or ())
        if self._late is not None:
            self._late.cancel()
        if response.has_more_pages:
            late = OperationTimedOut("no answer to a further page")
            self._late = self._home.loop.call_later(self._timeout, self.end, late)
            response.start_fetching_next_page()
        else:
            self.end(None)

    def _settle(self, error: BaseException | None) -> None:
        if self._future.done():
            return
        if error is not None:
            self._future.set_exception(error)
        else:
            self._future.set_result(self._rows)
