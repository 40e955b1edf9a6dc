"""When a subscriber's ACKs are sent to its log (section 4.3)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import inf
from typing import Final

__all__ = ["AckSender"]

ACK_SECONDS: Final = 0.02
"""Seconds between two messages of ACKs, unless many records wait for one.

A message costs both sides as much as the work on some records, and the log takes an ACK along with its next records."""

_DEFAULT_RECORDS: Final = 1_000
"""After so many records an ACK does not wait, if the subscriber names no window.

It is a tenth of the default of a log (``LogSettings.window``). A log whose own default is smaller than this waits
``ACK_SECONDS`` for each ACK."""

_WINDOW_PARTS: Final = 4
"""An ACK waits for no more than this part of the window, so the log has records to send meanwhile."""

_CLOSE_SECONDS: Final = 0.1
"""How long an ACK may take that is sent when the subscription closes."""


class AckSender:
    """Sends the newest ACK: the first one at once, and the next ones with pauses.

    Invariant (G8): an ACK that is not sent has a timer, or a message that is being written, after which it is sent. Or
    there is no call, and the next one begins with it. So a log that waits for an ACK gets it soon. Who could break it:
    a caller that gives up while its message waits for another, and a message that no call has taken.
    """

    def __init__(self, send: Callable[[int], Awaitable[bool]], window: int) -> None:
        """
        Args:
            send: Sends an ACK of all records below an offset. Returns False if no call has taken it.
            window: How many records the log sends beyond the last ACK. 0: the log's default.
        """
        self._send = send
        self._most = window // _WINDOW_PARTS if window else _DEFAULT_RECORDS
        self.newest = 0
        """Records below this offset are ACKed."""
        self._sent = 0
        self._sent_at = -inf
        self._writing = asyncio.Lock()
        """One message is sent after the other, so each has the newest ACK."""
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    async def ack(self, below: int) -> None:
        """ACK every record below an offset."""
        if below <= self.newest:
            return
        self.newest = below
        loop = asyncio.get_running_loop()
        if below - self._sent > self._most or loop.time() >= self._sent_at + ACK_SECONDS:
            await self.flush()
        else:
            self._send_later()

    def sent(self, below: int) -> None:
        """A new call has begun with this ACK."""
        self._sent = max(self._sent, below)

    async def flush(self) -> None:
        """Send the newest ACK now, if there is a call. The next call begins with it otherwise."""
        try:
            async with self._writing:
                if (newest := self.newest) > self._sent:
                    self._sent_at = asyncio.get_running_loop().time()
                    if await self._send(newest):
                        self.sent(newest)
        except asyncio.CancelledError:
            self._send_later()  # the caller gives up, and its ACK is still due
            raise

    async def close(self) -> None:
        """Send the newest ACK if there is a call and that takes no time. Then nothing more is sent."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.flush()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _send_later(self) -> None:
        if self._timer is None and not self._closed:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(self._sent_at + ACK_SECONDS, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._task = asyncio.get_running_loop().create_task(self.flush())
