"""Two programs by turns, chunk by chunk, on interval cores of their own in this process.

The store is memory, and nothing goes over a network. So what is measured is the work of the hooks and of the interval
cores, in CPU time. A server has more work than this for each record, so there a difference is a smaller share.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from bench.operators.records import BEGIN, SECOND, Bid, Pair, Row, chunks_of, topology_of
from millwheel.model.incarnation import injector_group
from millwheel.model.time import MAX_TIMESTAMP
from millwheel.sdk.compiled import consumers_of
from millwheel.sdk.topology import TopologyGraph
from millwheel.testing.cluster import VirtualCluster
from millwheel.testing.cores import HOOK_TIMEOUT_SECONDS
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.messages import Acknowledged, Delivery, SendDelivery

__all__ = ["Compared", "compare"]

Encoded = dict[str, list[tuple[Bid, bytes, int]]]
"""By stream: (value, encoded value, timestamp) of records."""


class _Program(VirtualCluster):
    """A topology. What it produces is kept, and not decoded."""

    def __init__(self, topology: TopologyGraph) -> None:
        super().__init__(BEGIN, (), IntervalSettings(), HOOK_TIMEOUT_SECONDS)
        self.load(topology)
        self.restart()
        self._results: list[Delivery] = []

    def send_batch(self, journal: str, one: SendDelivery) -> None:
        """Deliver a batch, or keep it."""
        delivery = one.delivery
        if delivery.consumer in self.incarnations.values():
            super().send_batch(journal, one)
        else:
            self._results.append(delivery)
            self.driver.post(journal, Acknowledged(delivery.token))

    def results(self) -> Counter[tuple[int, bytes]]:
        """(timestamp, encoded value) of the results so far."""
        found = [one for one in self._results if one.stream == "out"]
        return Counter(row for one in found for row in zip(one.timestamps, one.values, strict=True))

    def encoded(self, chunk: Iterable[Row]) -> Encoded:
        """What an injector has of records before it reads their keys."""
        streams: Encoded = {}
        for stream, value, at in chunk:
            streams.setdefault(stream, []).append((value, self.codecs[stream].encode(value), at))
        return streams

    def play(self, streams: Encoded, until: int) -> None:
        """Send records, and let a second pass. All records before ``until`` have come then."""
        for stream, rows in streams.items():
            self._deliver(stream, rows)
            self.run()
        for stream in self.declared:
            self.declared[stream] = until
            self.publish(stream)
        self.run()
        self.driver.pass_time(SECOND)
        self.run()

    def _deliver(self, stream: str, rows: list[tuple[Bid, bytes, int]]) -> None:
        """What an injector does for records that it has encoded: it reads their keys, and sends them."""
        for name, extract in consumers_of(self.topology, stream):
            incarnation = self.incarnations[name]
            journal, position = self.locate(incarnation, b""), self.injected.next_position(stream)
            watermark = self.watermarks[injector_group(stream)]
            delivery = self.injected.open(incarnation, journal, stream, position, watermark, opaque=False)
            delivery.keys = [extract(value) for value, _, _ in rows]
            delivery.values = [encoded for _, encoded, _ in rows]
            delivery.timestamps = [at for _, _, at in rows]
            ids: Any = delivery.ids
            ids.positions.append(position)
            ids.positions.extend(self.injected.next_position(stream) for _ in rows[1:])
            self.driver.post(journal, self.injected.keep(delivery))


class Compared:
    """The CPU time of both programs, for each chunk and run."""

    def __init__(self, name: str, records: int) -> None:
        self.name = name
        self.records = records
        self._runs: dict[bool, list[list[float]]] = {False: [], True: []}

    def add(self, by_hand: bool, times: list[float]) -> None:
        """A run: the seconds of each chunk."""
        self._runs[by_hand].append(times)

    def microseconds(self, *, by_hand: bool) -> float:
        """The time of one record: each chunk counts with the best of its runs, as others disturb some chunks."""
        best = (min(times) for times in zip(*self._runs[by_hand], strict=True))
        return sum(best, 0.0) / self.records * 1e6

    @property
    def ratios(self) -> tuple[float, ...]:
        """The ratio of each run."""
        return tuple(sum(a) / sum(b) for a, b in zip(self._runs[False], self._runs[True], strict=True))

    @property
    def ratio(self) -> float:
        """How many times as long the library takes."""
        return self.microseconds(by_hand=False) / self.microseconds(by_hand=True)


def compare(pair: Pair, records: int, runs: int) -> Compared:
    """Run both programs over the same records.

    Args:
        pair: The programs.
        records: How many records.
        runs: How often.

    Raises:
        RuntimeError: They produced different records.
    """
    found = Compared(pair.name, records)
    for run in range(runs):
        programs = {by_hand: _Program(topology_of(pair, by_hand=by_hand)) for by_hand in (False, True)}
        times: dict[bool, list[float]] = {False: [], True: []}
        gc.collect()
        for number, chunk in enumerate(chunks_of(pair, records)):
            until = BEGIN + (number + 1) * SECOND
            for by_hand in (True, False) if (run + number) % 2 else (False, True):
                program = programs[by_hand]
                streams = program.encoded(chunk)
                times[by_hand].append(_timed(program.play, streams, until))
        for by_hand, program in programs.items():
            times[by_hand].append(_timed(program.play, {}, int(MAX_TIMESTAMP)))
            found.add(by_hand, times[by_hand])
        _check(pair, programs)
    return found


def _check(pair: Pair, programs: dict[bool, _Program]) -> None:
    outputs = {by_hand: program.results() for by_hand, program in programs.items()}
    failures = [one.message for program in programs.values() for one in program.failures]
    if failures or not outputs[True] or outputs[False] != outputs[True]:
        counts = ", ".join(f"{sum(each.values())}" for each in outputs.values())
        raise RuntimeError(
            f"{pair.name}: both programs produce {counts} records, which differ; failures: {failures[:1]}"
        )
    for program in programs.values():
        program.driver.close()


def _timed(play: Callable[[Encoded, int], None], streams: Encoded, until: int) -> float:
    began = time.process_time()
    play(streams, until)
    return time.process_time() - began
