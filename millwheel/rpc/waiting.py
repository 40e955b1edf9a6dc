"""Notices about a long wait: a program that waits for a cluster says so, and says for what."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["FIRST_NOTICE_SECONDS", "NEXT_NOTICE_SECONDS", "wait_notices"]

FIRST_NOTICE_SECONDS: Final = 3.0
"""A wait that is shorter than this needs no notice."""

NEXT_NOTICE_SECONDS: Final = 30.0
"""The time from one notice to the next."""


class _Notices:
    """Arms a timer after each notice, until it is cancelled."""

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
    first: float = FIRST_NOTICE_SECONDS,
    again: float = NEXT_NOTICE_SECONDS,
) -> Iterator[None]:
    """Around awaits that may take long: calls ``say`` after ``first`` seconds, and then every ``again`` seconds.

    Args:
        describe: makes the notice; its argument is the number of seconds that have passed.
        say: takes the notice: a logger's method, for example.
        first: seconds until the first notice.
        again: seconds from one notice to the next.
    """
    notices = _Notices(lambda seconds: say(describe(seconds)), first, again)
    try:
        yield
    finally:
        notices.cancel()
