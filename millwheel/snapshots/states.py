"""The states of a computation as a snapshot has them, without a cluster and without the user's code (section 4.4).

A row of the snapshot counts for a key whose state no entry above the truncation point has: decision 34 says why.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from millwheel.model.incarnation import IncarnationId
from millwheel.model.interval_map import interval_from_proto
from millwheel.model.keys import KeyInterval
from millwheel.model.page_keys import is_page_key
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import snapshot_pb2 as wire
from millwheel.rpc.v1 import state_pb2
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.envelopes import MARK, opened
from millwheel.sdk.errors import ValueDecodeError
from millwheel.sdk.growing.codec import plain_part
from millwheel.sdk.schema import GROWING_STATE
from millwheel.sdk.scope import PAGES_TAG
from millwheel.snapshots.files import PartItem, RowItem, read_items
from millwheel.snapshots.location import SnapshotFolder
from millwheel.snapshots.manifest import read_manifest
from millwheel.snapshots.renaming import damaged_snapshot
from millwheel.store.contract import CorruptValueError, PartId
from millwheel.worker.interval.commits.divided import joined, names_base
from millwheel.worker.interval.entry import decode_entry
from millwheel.worker.interval.saved_keys import SavedKeys
from millwheel.worker.interval.shown_panes import joined_panes, pane_timers, panes_of

__all__ = ["SnapshotStates", "StateForm", "find_states"]

_PAGE: Final = 1_000
"""Keys of a page."""
_PAGE_BYTES: Final = 4 << 20
"""A page takes no further key once its states have so many bytes."""


@dataclass(frozen=True, slots=True)
class _SavedInterval:
    keys: KeyInterval
    journal: wire.SnapshotJournal


class SnapshotStates:
    """All keys of one computation in a snapshot. ``find_states`` makes it."""

    def __init__(
        self,
        folder: SnapshotFolder,
        spec: specs.ComputationSpec,
        intervals: list[_SavedInterval],
        rows: wire.SnapshotRows,
    ) -> None:
        self.spec = spec
        """The computation's declaration."""
        self._folder = folder
        self._intervals = intervals
        self._rows = rows
        self._form = StateForm(spec, folder.where)

    async def pages(self) -> AsyncIterator[list[state_pb2.ListedState]]:
        """The keys that have a state or a timer, in their order, some at a time.

        In memory are the journal of one interval, as at its takeover, and a file of rows.

        Raises:
            RequestError: Something is missing or damaged, or a state is of an earlier version of the code. The error
                names it.
        """
        page: list[state_pb2.ListedState] = []
        size = 0
        async for one in self._listed():
            page.append(one)
            size += len(one.state.state)
            if len(page) == _PAGE or size > _PAGE_BYTES:
                yield page
                page, size = [], 0
        if page:
            yield page

    async def _listed(self) -> AsyncIterator[state_pb2.ListedState]:
        rows = read_items(self._folder, self._rows.files, RowItem)
        row = await anext(rows, None)
        for interval in self._intervals:
            saved = await self._saved(interval.journal)
            waiting = sorted(key for key in saved.all_keys() if key in interval.keys)
            waiting.reverse()
            # Rows are in the order of their keys, and so are the intervals.
            while waiting or (row is not None and row.key in interval.keys):
                stored = b""
                if row is not None and row.key in interval.keys and not (waiting and waiting[-1] < row.key):
                    key, stored = row.key, row.blob
                    row = await anext(rows, None)
                    if is_page_key(key):
                        continue
                    if waiting and waiting[-1] == key:
                        waiting.pop()
                else:
                    key = waiting.pop()
                if (listed := self._key(saved, key, stored)) is not None:
                    yield listed

    async def _saved(self, journal: wire.SnapshotJournal) -> SavedKeys:
        """What the journal has of its keys."""
        where = f"{self._folder.where}, journal {journal.journal}"
        parts = {
            PartId(one.name, one.sequencer, one.commit): one.blob
            async for one in read_items(self._folder, journal.parts, PartItem)
        }
        if journal.truncation_point and not names_base(parts):
            raise damaged_snapshot(where, "it names no base")
        try:
            saved, commit = SavedKeys(parts, where), journal.truncation_point
            async for blob in read_items(self._folder, journal.entries, bytes):
                commit += 1
                which = f"{where}, entry {commit}"
                saved.apply(decode_entry(joined(blob, commit, parts, which), which))
        except (CorruptValueError, msgspec.MsgspecError) as error:
            raise damaged_snapshot(where, error) from error
        if commit != journal.commit:
            raise damaged_snapshot(where, f"its last entry is {commit}, and {journal.commit} is needed")
        return saved

    def _key(self, saved: SavedKeys, key: bytes, stored: bytes) -> state_pb2.ListedState | None:
        """What there is of a key. None: nothing. ``stored``: its row."""
        state = self._form.shown(key, saved.states.get(key, stored), panes_of(saved.panes, key))
        listed = state_pb2.ListedState(key=key, state=state_pb2.KeyState(state=state))
        timers = {name: (row[3], row[4]) for name, row in saved.timers.get(key, {}).items() if name[1] != PAGES_TAG}
        timers |= {(False, tag): (one.at, one.hold) for tag, one in pane_timers(saved.panes, key).items()}
        for (processing, tag), (at, hold) in sorted(timers.items(), key=lambda item: item[0]):
            timer = listed.timers.add(tag=tag, timestamp_us=at, wall_time=processing)
            if hold is not None:
                timer.hold_us = hold
        if (hold := saved.holds.get(key)) is not None:
            listed.hold_us = hold
        return listed if state or timers or hold is not None else None


class StateForm:
    """Stored states as readers outside get them, as far as no code of the user is needed for that."""

    def __init__(self, spec: specs.ComputationSpec, where: str) -> None:
        self._version = max(spec.state.version, 1)
        self._grows = any(one.path == "" and one.type == GROWING_STATE for one in spec.state.fields)
        self._where = f"{where}, computation {spec.name}"

    def shown(self, key: bytes, stored: bytes, panes: dict[tuple[int, int], Any]) -> bytes:
        """The encoding that the declared type has, with the panes of the key. Empty: there is no state."""
        where = f"{self._where}, key {key.decode(errors='replace')!r}"
        try:
            plain = self._plain(where, stored) if stored else b""
            return joined_panes(plain, panes) if panes else plain
        except (ValueDecodeError, msgspec.MsgspecError) as error:
            raise damaged_snapshot(where, error) from error

    def _plain(self, where: str, stored: bytes) -> bytes:
        if self._grows:
            version, data = plain_part(stored, where)
        else:
            version, data = opened(stored, where) if stored[:1] == MARK else (1, stored)
        if data and version != self._version:
            raise RequestError(
                FailureCode.FAILED_PRECONDITION,
                f"{where}: the state is of version {version}, and the code in the snapshot has version "
                f"{self._version}: it converts a state when it reads it",
                "restore the snapshot, under another name if you like, and read the states there",
                reason="STATE_OF_EARLIER_VERSION",
            )
        return data


async def find_states(folder: SnapshotFolder, computation: str) -> SnapshotStates:
    """Find a computation in a snapshot.

    Args:
        folder: The snapshot.
        computation: Its name, or ``TOPOLOGY/COMPUTATION``.

    Raises:
        RequestError: The snapshot cannot be read, or has no such computation.
    """
    manifest = await read_manifest(folder)
    topology = manifest.topology.spec.name
    name = computation.removeprefix(f"{topology}/")
    found = {one.name: one for one in manifest.topology.spec.computations}
    if name not in found:
        raise RequestError(
            FailureCode.NOT_FOUND,
            f"{folder.where}: it has no computation {computation!r}",
            f"topology {topology!r} has {', '.join(sorted(found)) or 'none'}",
        )
    incarnation = IncarnationId(manifest.topology.incarnations[name])
    journals = {one.journal: one for one in manifest.journals}
    maps = (one.map for one in manifest.maps if one.incarnation == incarnation)
    intervals = [
        _SavedInterval(interval_from_proto(one.keys), journals[one.journal]) for map_ in maps for one in map_.intervals
    ]
    intervals.sort(key=lambda one: one.keys.start)
    return SnapshotStates(folder, found[name], intervals, _rows_of(manifest.rows, incarnation))


def _rows_of(rows: Iterable[wire.SnapshotRows], incarnation: IncarnationId) -> wire.SnapshotRows:
    return next((one for one in rows if one.incarnation == incarnation), wire.SnapshotRows())
