"""What each computation receives on its streams and commits, over the last seconds, for the worker's load report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millwheel.rpc.v1 import inspection_pb2 as wire
from millwheel.worker.interval.measures import Distribution, IntervalMeasures
from millwheel.worker.process.rates import WindowRate
from millwheel.worker.process.tallies import ComputationName

__all__ = ["TrafficMeter"]

_COMMITTED: Final = "committed"
_APPENDED: Final = "appended"
"""Keys of rates beside those of streams: committed records, and appends to journals. A stream's rates have its name."""

_RateKey = tuple[ComputationName, str, str]


class TrafficMeter:
    """Rates of the measures of this process. A computation that is gone is forgotten."""

    def __init__(self, now: float) -> None:
        """``now``: when the process began to measure, by a steady clock in seconds."""
        self._rates: dict[_RateKey, WindowRate] = {}
        self._looked_at = now

    def traffic(
        self, now: float, measures: Mapping[ComputationName, IntervalMeasures]
    ) -> list[wire.ComputationTraffic]:
        """Return the traffic of each computation, sorted by name. ``now``: a steady clock, in seconds."""
        kept: dict[_RateKey, WindowRate] = {}

        def rate(place: ComputationName, kind: str, stream: str, total: float) -> float:
            key = place, kind, stream
            # All measures begin at 0, so what was not there at the last look has grown from 0 since.
            kept[key] = self._rates.get(key) or WindowRate(self._looked_at, 0.0)
            return kept[key].per_second(now, total)

        def mean(place: ComputationName, kind: str, distribution: Distribution) -> tuple[float, float]:
            """The values per second, and their mean."""
            count = rate(place, kind, "", sum(distribution.counts))
            total = rate(place, f"{kind} total", "", distribution.sum)
            return count, total / count if count else 0.0

        found = []
        for place, measured in sorted(measures.items(), key=lambda item: item[0]):
            committed, latency = mean(place, _COMMITTED, measured.commit_latency)
            appended, seconds = mean(place, _APPENDED, measured.append_seconds)
            one = wire.ComputationTraffic(
                topology=place[0],
                computation=place[1],
                committed_per_second=committed,
                commit_latency_seconds=latency,
                appends_per_second=appended,
                append_seconds=seconds,
            )
            # After a takeover the senders repeat what they keep. It did not come now.
            for stream, (records, size, old, old_size) in sorted(measured.received.items()):
                one.streams.add(
                    stream=stream,
                    records_per_second=rate(place, "records", stream, records - old),
                    bytes_per_second=rate(place, "bytes", stream, size - old_size),
                )
            found.append(one)
        self._rates, self._looked_at = kept, now
        return found
