"""Notices about a long wait: a waiting program reports what it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["wait_notices"]

_FIRST_NOTICE_SECONDS: Final = 3.0
"""Seconds until the first notice. A shorter wait gets none."""

_NEXT_NOTICE_SECONDS: Final = 30.0
"""Seconds from one notice to the next."""


class _Notices:
    """Gives notices, each by a timer, until it is cancelled."""

    def __init__(self, notice: Callable[[float], object], first: float, again: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._notice = notice
        self._again = again
        self._timer = self._loop.call_later(first, self._due)

    def _due(self) -> None:
        self._timer = self._loop.call_later(self._again, self._due)
        self._notice(self._loop.time() - self._began)

    def cancel(self) -> None:
        self._timer.cancel()


@contextmanager
def wait_notices(
    describe: Callable[[float], str],
    say: Callable[[str], object],
    *,
    first: float = _FIRST_NOTICE_SECONDS,
    again: float = _NEXT_NOTICE_SECONDS,
) -> Iterator[None]:
    """Call ``say`` after ``first`` seconds in the block, then every ``again`` seconds.

    Args:
        describe: returns the notice's text for the seconds that have passed.
        say: receives the text: a logger's method, for example.
        first: seconds until the first notice.
        again: seconds from one notice to the next.
    """
    notices = _Notices(lambda seconds: say(describe(seconds)), first, again)
    try:
        yield
    finally:
        notices.cancel()
