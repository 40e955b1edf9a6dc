"""Ids of weak productions: hashes of what caused them, the same after any crash and in any batch (design §8, 6.1.3)."""

from __future__ import annotations

import hashlib
from typing import Any

from millwheel.worker.dedup import BatchIds, PositionIds

__all__ = ["causal_id"]


def causal_id(computation: str, key: bytes, cause: Any, stream: str, ordinal: int) -> bytes:
    """The id of production number ``ordinal`` of a hook of ``key``.

    ``cause`` is (ids of a delivery, index) of the record that the hook ran for, or of a timer the position
    that its setting was committed at. Commit numbers of a key grow over all owners, splits and merges, so
    with the key that position names one setting, whatever journal holds it.
    """
    source = _record_name(*cause) if isinstance(cause, tuple) else b"timer/%d/%s" % (cause, key)
    text = b"\0".join((computation.encode(), b"%d" % len(source), source, stream.encode(), b"%d" % ordinal))
    return hashlib.blake2b(text, digest_size=16).digest()


def _record_name(ids: Any, index: int) -> bytes:
    """An input record's id as bytes: the same for every copy of the record, whoever delivers it."""
    if isinstance(ids, PositionIds):
        return f"position/{ids.sequence}/{ids.positions[index]}".encode()
    if isinstance(ids, BatchIds):
        # The number first: an id of a batch may stand for another record in the next one.
        return b"batch/%d/" % ids.batch + ids.query.encode() + b"/" + ids.ids[index]
    return b"opaque/" + bytes(ids.ids[index])
