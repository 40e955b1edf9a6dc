"""What a delivery says about its records' identity (6.1.1; design §8): a mirror of delivery.proto without protobuf.

Three kinds of ids, for three kinds of senders:

* :class:`PositionIds`: places in the sender's own sequence. Collected exactly, by the sender's mark.
* :class:`OpaqueIds`: 16 bytes known by value alone. Collected by the sending computation's low watermark.
* :class:`BatchIds`: 16 bytes within one numbered batch of one query. Collected when a later batch begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millwheel.core.keys import KeyInterval

__all__ = ["ID_BYTES", "BatchIds", "DeliveryIds", "OpaqueIds", "PositionIds", "Sender", "split_ids"]

ID_BYTES = 16
"""The length of an opaque or batch id."""


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sends, under which authority, and when by its own watermark.

    ``origin`` is an interval's journal, or "injector/{stream}/{process}". ``keys`` are the producing
    keys that the sender owns, None for an injector. ``watermark`` is the output watermark, in
    microseconds, that the sender had last reported for itself when it sent this copy; None
    if it does not say. Copies older than the collection of their ids are told by it (:attr:`Outcome.SEND_AGAIN`).
    ``heard`` is the highest such ``watermark`` in any delivery that the sender has itself received: while a
    cause of these records is un-ACKed, its own sender's watermark stands still, so the sending computation
    cannot get past ``heard`` before the records are settled, and their ids are kept at least until it does.
    Only opaque ids look at the two.
    """

    origin: str
    sequencer: int
    keys: KeyInterval | None
    computation: str
    watermark: int | None = None
    heard: int | None = None


@dataclass(slots=True)
class PositionIds:
    """Ids that increase along ``sequence`` and are never reused.

    ``mark``: every record of the sequence below it that is due to the receiving interval has been
    ACKed, but for those in ``unacked``. Zero claims nothing. ``unacked`` lets a sender whose oldest
    record is stuck raise its mark nevertheless, which bounds what receivers must remember by what
    senders have outstanding.
    """

    sequence: str
    mark: int
    positions: Sequence[int]
    unacked: Sequence[int] = ()


@dataclass(slots=True)
class OpaqueIds:
    """Ids known by value alone, :data:`ID_BYTES` each: uniformly distributed hashes."""

    ids: Sequence[bytes]


@dataclass(slots=True)
class BatchIds:
    """Ids unique within ``batch`` of ``query``; batch b + 1 begins only when all of batch b has been ACKed."""

    query: str
    batch: int
    ids: Sequence[bytes]


DeliveryIds = PositionIds | OpaqueIds | BatchIds


def split_ids(blob: bytes) -> list[bytes]:
    """The ids of a wire blob, one after the other; ValueError if a part of an id is left over."""
    if len(blob) % ID_BYTES:
        raise ValueError(f"{len(blob)} bytes are no whole number of {ID_BYTES}-byte ids")
    return [blob[at : at + ID_BYTES] for at in range(0, len(blob), ID_BYTES)]
