"""Types that msgspec knows in full before two threads decode values of them.

msgspec (0.22) looks at a class when it first decodes a value of it, or makes a decoder. It keeps what it finds on the
class, and puts it there before it has looked at all fields. A second thread that decodes a value meanwhile takes that
for the whole. It reads a field that is not there yet, and the process ends with a segmentation fault.

So the types of users are looked at here, by one thread at a time. A type of MillWheel that threads decode has a decoder
in its module: nothing gets the type before the module is imported.
"""

from __future__ import annotations

from threading import RLock
from typing import Final, TypeVar

import msgspec

__all__ = ["known"]

T = TypeVar("T")

_looking: Final = RLock()
_PATIENCE_SECONDS: Final = 5.0
"""How long a look waits for another one. Annotations are code of users, which may never end."""


def known(kind: T) -> T:
    """Let msgspec look at a type before a value of it is decoded. Returns the type.

    For example, before threads read rows of the type by ``msgspec.convert(row, kind)``::

        kind = known(kind)

    Raises:
        TypeError: msgspec does not support the type. It has other errors, too.
    """
    alone = _looking.acquire(timeout=_PATIENCE_SECONDS)
    try:
        msgspec.msgpack.Decoder(kind)
    finally:
        if alone:
            _looking.release()
    return kind
