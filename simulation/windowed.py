"""The expected results of library windows, computed window by window from the injected records alone.

Without late records the results are known exactly: start, end and ids of each key's windows. Late records have bounds:
each is in the windows that it belongs to, or was too late for all of them. It changes nothing else.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from simulation.blocks import LIBRARY, Item, spans_of
from simulation.plan import Plan, PlannedRecord

__all__ = ["window_differences"]

Span = tuple[int, int]
Results = dict[str, dict[Span, dict[int, list[int]]]]
"""By key, window and revision: the ids."""

Sunk = Mapping[str, Mapping[int, tuple[int, Item]]]


def window_differences(plan: Plan, sunk: Sunk) -> Iterator[str]:
    """Wrong or missing results of library windows (G1)."""
    for node in plan.nodes:
        if node["kind"] == LIBRARY:
            yield from _Judge(plan, node, sunk).differences()


class _Judge:
    """One node's results against its records."""

    def __init__(self, plan: Plan, node: dict[str, Any], sunk: Sunk) -> None:
        self._name = node["name"]
        self._shape, self._size, self._every, self._offset, self._lateness = node["arguments"]
        if self._shape != "sliding":
            self._every = self._size
        self._whole = not plan.ending
        """Whether all results have arrived."""
        output, *too_late = node["outputs"]
        self._output: Mapping[int, tuple[int, Item]] = sunk.get(output, {})
        aside = [item for stream in too_late for _, item in sunk.get(stream, {}).values()]
        self._too_late = Counter(one for item in aside for one in item.ids)
        ((_, field),) = node["inputs"].items()
        self._keys: dict[str, list[PlannedRecord]] = defaultdict(list)
        for reader in plan.readers:
            for one in reader.inputs if reader.stream in node["sources"] else ():
                self._keys[getattr(one, field)].append(one)

    def differences(self) -> Iterator[str]:
        results: Results = defaultdict(lambda: defaultdict(dict))
        ended: dict[str, int] = {}
        for offset, (timestamp, item) in sorted(self._output.items()):
            start, end, revision = spans_of(item)
            if self._shape == "columns" and ended.setdefault(item.a, end) > end:
                yield f"{self._name}, offset {offset}: the window of {item.a} to {end} comes after a later one (G5)"
            ended[item.a] = max(end, ended.get(item.a, end))
            if timestamp != end:
                yield f"{self._name}, offset {offset}: the result of window {start} to {end} is at {timestamp} (G1)"
            if results[item.a][start, end].setdefault(revision, item.ids) is not item.ids:
                yield f"{self._name}, key {item.a}: revision {revision} of {start} to {end} comes twice (G1)"
        for key in sorted({*results, *self._keys}):
            for difference in self._of_key(self._keys[key], results[key]):
                yield f"{self._name}, key {key}: {difference} (G1)"
        late = {one.number for inputs in self._keys.values() for one in inputs if one.late}
        if wrong := {number: count for number, count in self._too_late.items() if number not in late or count > 1}:
            yield f"{self._name}: records {wrong} are too late, and were in time, or come again (G1)"

    def _of_key(self, inputs: list[PlannedRecord], results: Mapping[Span, Mapping[int, list[int]]]) -> Iterator[str]:
        for span, revisions in results.items():
            yield from self._revisions(span, revisions)
        last = {span: Counter(revisions[max(revisions)]) for span, revisions in results.items()}
        yield from self._sessions(inputs, last) if self._shape == "session" else self._aligned(inputs, last)
        present = {number for ids in last.values() for number in ids}
        for one in inputs if self._whole else ():
            if one.late and (one.number in present) is (one.number in self._too_late):
                yield f"late record {one.number} is in a window and too late, or neither"
            kept = self._shape != "session" and self._lateness >= 3_600_000_000
            if one.late and kept and one.number not in present:
                yield f"late record {one.number} is in no window, and all windows are kept for it"

    def _revisions(self, span: Span, revisions: Mapping[int, list[int]]) -> Iterator[str]:
        """Revisions are 0, 1, 2, … and each has one record more than the one before."""
        if sorted(revisions) != list(range(len(revisions))):
            yield f"the revisions of {span} are {sorted(revisions)}"
            return
        for number in range(1, len(revisions)):
            if (Counter(revisions[number]) - Counter(revisions[number - 1])).total() != 1:
                yield f"revision {number} of {span} has {revisions[number]}, after {revisions[number - 1]}"

    def _aligned(self, inputs: list[PlannedRecord], last: Mapping[Span, Counter[int]]) -> Iterator[str]:
        """A window has the key's records whose timestamps are in it."""
        windows: dict[Span, tuple[set[int], set[int]]] = defaultdict(lambda: (set(), set()))
        for one in inputs:
            for span in self._spans(one.timestamp):
                windows[span][one.late].add(one.number)
        for span in sorted({*windows, *last}):
            sure, late = windows[span]
            yield from self._compare(f"window {span}", sure, late, last.get(span, Counter()))

    def _spans(self, timestamp: int) -> Iterator[Span]:
        """All windows that contain a timestamp, found by trying each start ``offset + n * every``."""
        nearest = (timestamp - self._size - self._offset) // self._every - 1
        for number in range(nearest, nearest + self._size // self._every + 4):
            start = self._offset + number * self._every
            if start <= timestamp < start + self._size:
                yield start, start + self._size

    def _sessions(self, inputs: list[PlannedRecord], last: Mapping[Span, Counter[int]]) -> Iterator[str]:
        """Without late records the sessions are known exactly.

        With late records, no record may be duplicated or missing. Records in time that are closer than the gap are in
        one session, because neither may come after the end of the other's session.
        """
        sure, late = {one.number for one in inputs if not one.late}, {one.number for one in inputs if one.late}
        if late:
            yield from self._compare("all sessions", sure, late, sum(last.values(), Counter()))
            spans = {number: span for span, ids in last.items() for number in ids}
            in_time = sorted((one for one in inputs if not one.late), key=lambda one: one.timestamp)
            for one, other in pairwise(in_time) if self._whole else ():
                near = other.timestamp - one.timestamp < self._size
                if near and spans.get(one.number) != spans.get(other.number):
                    yield f"records {one.number} and {other.number} are in two sessions, though they are near"
            return
        sessions: dict[Span, set[int]] = {}
        ordered = sorted(inputs, key=lambda one: one.timestamp)
        while ordered:
            count = 1
            while count < len(ordered) and ordered[count].timestamp - ordered[count - 1].timestamp < self._size:
                count += 1
            session, ordered = ordered[:count], ordered[count:]
            span = session[0].timestamp, session[-1].timestamp + self._size
            sessions[span] = {one.number for one in session}
        for span in sorted({*sessions, *last}) if self._whole else ():
            yield from self._compare(f"session {span}", sessions.get(span, set()), set(), last.get(span, Counter()))

    def _compare(self, what: str, sure: set[int], late: set[int], found: Counter[int]) -> Iterator[str]:
        if extra := {number: count for number, count in found.items() if count > 1 or number not in sure | late}:
            yield f"{what} has records too often, or from elsewhere: {extra}"
        if self._whole and (lost := sure - set(found)):
            yield f"{what} lacks records {sorted(lost)}"
