"""Types that msgspec knows in full before two threads decode values of them.

msgspec (0.22) looks at a class when it first decodes a value of it, or makes a decoder. It keeps what it finds on the
class, and puts it there before it has looked at all fields. A second thread that decodes a value meanwhile takes that
for the whole. It reads a field that is not there yet, and the process ends with a segmentation fault.

So the types of users are looked at here, by one thread at a time. A type of MillWheel that threads decode has a decoder
in its module: nothing gets the type before the module is imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Lock, get_ident
from typing import Final, TypeVar

import msgspec

__all__ = ["WAITS", "known"]

T = TypeVar("T")

WAITS: Final = 50
"""How many times a look waits for another one. Annotations are code of users, which may never end. Waits are counted,
and not seconds: a process that was paused for long would go on with both looks at the same time."""
_WAIT_SECONDS: Final = 0.1


def known(kind: T) -> T:
    """Let msgspec look at a type before a value of it is decoded. Returns the type.

    It waits for a look of another thread, but for no more than 5 s. A look that lasts longer may never end, and then
    nothing waits for it any more.

    For example, before threads read rows of the type by ``msgspec.convert(row, kind)``::

        kind = known(kind)

    Raises:
        TypeError: msgspec does not support the type. It has other errors, too.
    """
    with _turns.turn():
        msgspec.msgpack.Decoder(kind)
    return kind


class _Look:
    """A look of one thread, with all that it causes in this thread."""

    def __init__(self) -> None:
        self.thread = get_ident()
        self.ended = Event()


class _Turns:
    """Looks begin one after the other, each when the one before has ended or is given up."""

    def __init__(self) -> None:
        self._present: _Look | None = None
        self._guard = Lock()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for the turn of this thread. The block is its look."""
        present = self._present
        if present is not None and present.thread == get_ident() and not present.ended.is_set():
            yield  # an annotation looks at another type
            return
        mine, given_up = _Look(), None
        while (other := self._begin(mine, given_up)) is not None:
            # After a look is given up, the next one gets as much time: it has just begun.
            given_up = None if any(other.ended.wait(_WAIT_SECONDS) for _ in range(WAITS)) else other
        try:
            yield
        finally:
            mine.ended.set()

    def _begin(self, mine: _Look, given_up: _Look | None) -> _Look | None:
        """Begin a look. Returns the one to wait for instead, if there is one."""
        with self._guard:
            present = self._present
            if present is None or present is given_up or present.ended.is_set():
                self._present = mine
                return None
            return present


_turns: Final = _Turns()
