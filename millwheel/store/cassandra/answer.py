"""The answer to one request, of one page or several, as a future of asyncio's."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

from cassandra import OperationTimedOut
from cassandra.cluster import ResponseFuture

from millwheel.store.cassandra.connection import LoopThread

__all__ = ["Answer", "Row"]

Row = tuple[Any, ...]


class Answer:
    """Await it for the rows of all pages, or what the driver says of the failure; :meth:`leave` it in the end."""

    def __init__(self, timeout: float) -> None:
        """``timeout``: seconds for each page after the first; the driver sets a deadline to that one alone."""
        self._home = LoopThread.here()
        self._timeout = timeout
        self._rows: list[Row] = []
        self._future: asyncio.Future[list[Row]] = self._home.loop.create_future()
        self._late: asyncio.TimerHandle | None = None
        self._response: ResponseFuture | None = None

    def follow(self, response: ResponseFuture) -> None:
        """Have it be the answer to what was sent."""
        self._response = response
        response.add_callbacks(self._arrived, self.end)

    def __await__(self) -> Generator[Any, None, list[Row]]:
        return self._future.__await__()

    def end(self, error: BaseException | None) -> None:
        """End it, with ``error`` or with what has arrived, unless it has ended. From any thread."""
        try:
            self._home.call(self._settle, error)
        except RuntimeError:
            """The loop is closed: nobody waits any more."""

    def leave(self) -> None:
        """Nobody waits any more."""
        if self._late is not None:
            self._late.cancel()
        if self._response is not None:
            # It knows who is called, and they know it: forty objects that only the collector would find, with all that
            # was sent, for each request.
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
