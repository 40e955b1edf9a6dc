"""The rows that a system has written, in the form of the models. Pure, but for reading the files.

MillWheel writes the values of its streams, and Bytewax JSON lists. Flink writes JSON objects, or a log of changes where
results are corrected. Of corrected results the last state counts.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from bench.nexmark.models import Row

__all__ = ["UPDATED", "changelog_rows", "list_rows", "object_rows", "value_rows", "written_lines"]

Value = dict[str, Any]
_BID: Final = ("auction", "bidder", "price", "channel", "url", "at", "extra")
_AUCTION: Final = (
    *("id", "item", "description", "initial_bid", "reserve", "category", "seller", "expires", "at", "extra"),
)  # fmt: skip
_PRICE: Final = _BID.index("price")
UPDATED: Final = {"q4": 1, "q9": 1, "q18": 2, "q19": 1}
"""The queries whose results are corrected, and how many columns are the key of a result."""
_CHANGE: Final = re.compile(r"([+-][IUD])\[(.*)\]$")
_NEW: Final = ("+I", "+U")


def written_lines(folder: Path) -> Iterator[bytes]:
    """The lines of all files below a folder, in the order of their names. Names that begin with . or _ are no data."""
    for file in sorted(folder.rglob("*")):
        if file.is_file() and not any(part[0] in "._" for part in file.relative_to(folder).parts):
            yield from file.read_bytes().splitlines()


def value_rows(query: str, values: Iterable[Any]) -> Counter[Row]:
    """The rows of MillWheel's values, each of which is what JSON makes of it."""
    if query not in UPDATED:
        return Counter(row for value in values for row in _ROWS[query](value))
    newest: dict[Any, Any] = {}
    for value in values:
        newest[_KEYS[query](value)] = value
    return Counter(row for value in newest.values() for row in _ROWS[query](value))


def list_rows(query: str, lists: Iterable[list[Any]]) -> Counter[Row]:
    """The rows of JSON lists. A result of q19 is an auction with the list of its bids."""
    if query not in UPDATED:
        return Counter(map(tuple, lists))
    newest = {tuple(one[: UPDATED[query]]): one for one in lists}
    if query == "q19":
        return Counter((auction, bid[_PRICE]) for auction, bids in newest.values() for bid in bids)
    return Counter(map(tuple, newest.values()))


def object_rows(objects: Iterable[Value]) -> Counter[Row]:
    """The rows of JSON objects, whose fields are in the order of the columns."""
    return Counter(tuple(one.values()) for one in objects)


def changelog_rows(query: str, lines: Iterable[str]) -> Counter[Row]:
    """The rows that a log of changes leaves. Other lines between them do not matter.

    A new row of a key takes the place of the one before it, whether the log retracts that one or not. A key of q19 is
    an auction and a rank, which is the last column.
    """
    newest: dict[Row, Row] = {}
    for change in filter(None, map(_CHANGE.search, lines)):
        row = tuple(map(_cell, change[2].split(", ")))
        key = (row[0], row[-1]) if query == "q19" else row[: UPDATED[query]]
        if change[1] in _NEW:
            newest[key] = row
        elif newest.get(key) == row:
            del newest[key]
    if query == "q19":
        return Counter((row[0], row[_PRICE]) for row in newest.values())
    return Counter(newest.values())


def _cell(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _bid_row(bid: Value) -> Row:
    return tuple(bid[name] for name in _BID)


def _winning_row(offer: Value) -> Row:
    auction, bid = offer["auction"], offer["bid"]
    return (
        *(auction[name] for name in ("id", "item", "seller", "category")),
        *(bid[name] for name in ("bidder", "price", "at")),
    )


def _window_row(one: Value) -> Row:
    return int(one["key"]), one["start"], one["end"], one["value"]


_ROWS: Final[dict[str, Callable[[Value], Iterable[Row]]]] = {
    "q0": lambda one: [_bid_row(one)],
    "q1": lambda one: [_bid_row(one)],
    "q2": lambda one: [(one["auction"], one["price"])],
    "q3": lambda one: [(one["name"], one["city"], one["state"], one["auction"])],
    "q4": lambda one: [(one["category"], one["sold"], one["total"])],
    "q5": lambda one: [_window_row(one)],
    "q7": lambda one: [tuple(one["value"][name] for name in ("auction", "price", "bidder", "at"))],
    "q8": lambda one: [(one["person"], one["name"])],
    "q9": lambda one: [_winning_row(one["offer"])],
    "q11": lambda one: [_window_row(one)],
    "q18": lambda one: [_bid_row(one["bid"])],
    "q19": lambda one: [(one["auction"], bid["price"]) for bid in one["bids"]],
    "q20": lambda one: [(*_bid_row(one["bid"]), *(one["auction"][name] for name in _AUCTION))],
}
_KEYS: Final[dict[str, Callable[[Value], Any]]] = {
    "q4": lambda one: one["category"],
    "q9": lambda one: one["offer"]["auction"]["id"],
    "q18": lambda one: (one["auction"], one["bidder"]),
    "q19": lambda one: one["auction"],
}
