"""What people and programs see of windows by columns: states and timers, as if hooks kept them (sections 4.4, 4.6).

All of it is as of the last sealed commit, like the states of cells.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from millwheel.sdk.effects import TimerSetting
from millwheel.worker.interval.panes.plain import encoded_panes
from millwheel.worker.interval.panes.table import PaneTable, WindowPanes
from millwheel.worker.interval.state import IntervalState

__all__ = ["first_pane", "joined_panes", "keys_in", "pane_timers", "panes_of", "with_panes"]


def pane_timers(panes: PaneTable, key: bytes) -> dict[str, TimerSetting]:
    """The timers that the panes of the key stand for, by tag."""
    if not panes.windows:
        return {}
    found = [one for one in panes.windows.values() if one.settled_row(key) is not None]
    return {one.timer[2]: TimerSetting(one.end, None, one.end) for one in found}


def keys_in(window: WindowPanes, key: bytes | None = None) -> Iterable[bytes]:
    """The keys that have a pane in the window: all of them, or the one key if it has."""
    if key is None:
        return window.settled()
    return () if window.settled_row(key) is None else (key,)


def first_pane(panes: PaneTable) -> tuple[bytes, str] | None:
    """Key and tag of a pane of the first window. None: there is none."""
    first = panes.first_end
    for window in panes.windows.values():
        if window.end == first and window.count:
            return window.first_keys(0, 1)[0], window.timer[2]
    return None


def panes_of(panes: PaneTable, key: bytes) -> dict[tuple[int, int], Any]:
    """The panes of the key, by start and end, as plain values that its hooks would encode."""
    found: dict[tuple[int, int], Any] = {}
    for window in panes.windows.values():
        if (row := window.settled_row(key)) is not None:
            bounds = window.start, window.end
            blob = encoded_panes(window.form, {bounds: [column[[row]] for column in window.columns]})
            found |= msgspec.msgpack.decode(blob, type=dict[tuple[int, int], Any])
    return found


def with_panes(state: IntervalState, encoded: bytes, found: dict[tuple[int, int], Any]) -> bytes:
    """The encoded state of a key with its panes, as its hooks would encode it.

    Args:
        state: The interval.
        encoded: The state of its cell or its row. Empty: it has none.
        found: What ``panes_of`` has returned.

    Raises:
        Exception: It has panes, and its state cannot be read.
    """
    if not found:
        return encoded
    return joined_panes(state.program.state.present(encoded) if encoded else b"", found)


def joined_panes(plain: bytes, found: dict[tuple[int, int], Any]) -> bytes:
    """A state as programs outside get it, with the panes that ``panes_of`` has returned."""
    whole: dict[tuple[int, int], Any] = msgspec.msgpack.decode(plain, type=dict[tuple[int, int], Any]) if plain else {}
    return msgspec.msgpack.encode(whole | found)
