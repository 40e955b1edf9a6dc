"""Records that replace records. They keep the fields of a newer version of MillWheel (docs/upgrading.md)."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import Message

__all__ = ["successor_of"]

Record = TypeVar("Record", bound=Message)


def successor_of(first: Record, *others: Record) -> Record:
    """Return a record without any field that this version knows, and with all fields that it does not know.

    A newer version may have written such fields. A record that is built from nothing would lose them. If several
    records have the same unknown field, a newer version reads a single value from the last one, and a repeated value
    from all.
    """
    kept = type(first)()
    for record in (first, *others):
        kept.MergeFrom(record)
    for field in kept.DESCRIPTOR.fields:
        kept.ClearField(field.name)
    return kept
