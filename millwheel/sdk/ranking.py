"""An order of values of any type, which is the same in every process."""

from __future__ import annotations

from typing import Any

import msgspec

from millwheel.sdk.arrays import is_numpy, plain_of

__all__ = ["rank_bytes"]


def _plain(value: Any) -> Any:
    return plain_of(value) if is_numpy(value.__class__) else str(value)


rank_bytes = msgspec.msgpack.Encoder(enc_hook=_plain, order="deterministic").encode
"""An encoding of a value. Operators order by it what has equal timestamps, and compare results by it."""
