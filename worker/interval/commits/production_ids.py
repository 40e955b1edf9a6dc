"""Deterministic ids of weak productions: hashes of their causes (6.1.3).

An id is equal after any crash and in any batch.
"""

from __future__ import annotations

import hashlib
from typing import Any

from millwheel.model.incarnation import IncarnationId
from millwheel.worker.dedup import BatchIds, PositionIds

__all__ = ["deterministic_id"]


def deterministic_id(incarnation: IncarnationId, key: bytes, cause_id: Any, stream: str, ordinal: int) -> bytes:
    """The id of production number ``ordinal`` of a hook of ``key``.

    ``cause_id`` identifies what the hook ran for. For a record it is (ids of a delivery, index). For a timer it is the
    position at which its setting was committed. Commit numbers of a key grow across all owners, splits and merges. So
    the position and the key identify one setting, whichever journal holds it.
    """
    source = _record_name(*cause_id) if isinstance(cause_id, tuple) else b"timer/%d/%s" % (cause_id, key)
    text = b"\0".join((incarnation.encode(), b"%d" % len(source), source, stream.encode(), b"%d" % ordinal))
    return hashlib.blake2b(text, digest_size=16).digest()


def _record_name(ids: Any, index: int) -> bytes:
    """An input record's id as bytes. It is equal for every copy of the record, also of another sender."""
    if isinstance(ids, PositionIds):
        return f"position/{ids.sequence}/{ids.positions[index]}".encode()
    if isinstance(ids, BatchIds):
        # The batch number is part of the name, because an id may denote another record in the next batch.
        return b"batch/%d/" % ids.batch + ids.query.encode() + b"/" + ids.ids[index]
    return b"opaque/" + bytes(ids.ids[index])
