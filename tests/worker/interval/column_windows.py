"""Counts of windows by columns, driven by hand, and what is in their table and in states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

import millwheel as mw
from millwheel import agg, windows
from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.store.contract import JournalHead
from millwheel.windows.result import Row
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.messages import (
    OpenedParent,
    Parent,
    ReadStates,
    StatesRead,
    Tick,
)
from tests.worker.interval.driver import IntervalDriver

COLUMNS = IntervalSettings(columns_from=1)
SMALL = IntervalSettings(columns_from=1, batch_records=10)
RETRY = mw.retry(initial=mw.seconds(1))


class Results:
    """Makes results. Those of the ``broken`` keys fail, or of one window of a key. ``made``: the keys of attempts."""

    def __init__(self, *broken: str) -> None:
        self.broken = set(broken)
        self.made: list[str] = []

    def __call__(self, key: str, start: int, end: int, value: Any, revision: int) -> str:
        self.made.append(key)
        if key in self.broken or f"{key} {start}" in self.broken:
            raise ValueError("no result")
        return f"{key} {start}-{end} {value}"


def counting(made: Results, size: int = 10, **options: Any) -> windows.Aggregate[Any]:
    assigned = windows.tumbling(mw.Duration(size))
    return windows.Aggregate(assigned, agg.count(), output="out", row=Row(str, made), **options)


def driver_of(made: Results, settings: IntervalSettings = COLUMNS, **options: Any) -> IntervalDriver:
    return IntervalDriver(counting(made), settings=settings, outputs={}, **options)


def opened(driver: IntervalDriver, computation: Any = None, **options: Any) -> IntervalDriver:
    """The next owner, which has the same journal."""
    made = computation or counting(Results())
    given: dict[str, Any] = {"settings": COLUMNS, **options}
    successor = IntervalDriver(made, entries=list(driver.entries), outputs={}, **given)
    successor.position = driver.position
    return successor


def panes(driver: IntervalDriver) -> dict[tuple[str, int], int]:
    """The count of each pane in the table, by key and end."""
    found: dict[tuple[str, int], int] = {}
    for window in driver.state.panes.windows.values():
        keys = list(window.listed())
        (column,) = window.present(keys, driver.state.panes.fold)
        found.update(zip(((key.decode(), window.end) for key in keys), column.tolist(), strict=True))
    return found


def states(driver: IntervalDriver) -> dict[str, Any]:
    cells = {key: cell.encoded for key, cell in driver.state.cells.items() if cell.encoded}
    return {key.decode(): msgspec.msgpack.decode(blob, type=dict[tuple[int, int], Any]) for key, blob in cells.items()}


def later(driver: IntervalDriver, seconds: int = 2) -> None:
    driver.now += seconds * 1_000_000
    driver.handle(Tick())


def read_states(driver: IntervalDriver) -> int:
    """Answer reads of rows: there are none. Returns the most keys of one read."""
    asked = [one.keys for one in driver.take(ReadStates)]
    for keys in asked:
        driver.handle(StatesRead(keys, [None] * len(keys)))
    return max(map(len, asked), default=0)


def parts_of(driver: IntervalDriver, keys: KeyInterval, journal: str) -> OpenedParent:
    return OpenedParent(Parent(journal, keys), JournalHead(7, driver.state.committed, 0, ()), {}, list(driver.entries))


def child_of(
    parents: Sequence[OpenedParent], entries: Sequence[bytes] = (), keys: KeyInterval = ALL_KEYS
) -> IntervalDriver:
    return IntervalDriver(
        counting(Results()), settings=COLUMNS, outputs={}, parents=parents, entries=list(entries), keys=keys
    )
