"""The history of a run, one JSON object a line: sends, watermarks, receipts, faults. Times are wall microseconds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import msgspec


class _Happened(msgspec.Struct, tag_field="what", tag=str.lower, frozen=True):
    at: int


class Sent(_Happened, frozen=True):
    """A source is about to send the records ``first``, ``first`` + 1, … with these keys, groups and timestamps."""

    source: str
    first: int
    keys: list[str]
    groups: list[str]
    timestamps: list[int]


class Advanced(_Happened, frozen=True):
    """A source has declared that no older record will come. None: no record at all."""

    source: str
    watermark: int | None


class Acked(_Happened, frozen=True):
    """All records of a source below ``position`` are ACKed."""

    source: str
    position: int


class Subscribed(_Happened, frozen=True):
    """A subscriber starts again. Records below offset ``durable`` have a durable ACK. Others may come again."""

    stream: str
    durable: int


class Received(_Happened, frozen=True):
    """A subscriber got records, from offset ``first`` on, each as the list of its fields."""

    stream: str
    first: int
    values: list[list[Any]]


class Struck(_Happened, frozen=True):
    """A fault begins. ``clock``: clocks are wrong while it lasts."""

    fault: str
    text: str = ""
    clock: bool = False


class Mended(_Happened, frozen=True):
    """The cause of a fault is removed. ``recovered``: its effects are, too."""

    fault: str
    recovered: bool


Event: TypeAlias = Sent | Advanced | Acked | Subscribed | Received | Struck | Mended


class History:
    """Appends events to a file as they happen. Each line is whole even if this process is killed."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        self._encode = msgspec.json.Encoder().encode

    def add(self, event: Event) -> None:
        """Write an event."""
        self._file.write(self._encode(event) + b"\n")

    def close(self) -> None:
        """Close the file: no more events come."""
        self._file.close()


def read(path: Path) -> Iterator[Event]:
    """The events of a run, in the order in which they were written."""
    decode: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
    with path.open("rb") as file:
        for line in file:
            yield decode.decode(line)
