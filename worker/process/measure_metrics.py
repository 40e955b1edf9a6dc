"""The worker's distributions for Prometheus, its records by stream, its system lag, and the figures of its logs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from millwheel.model.stream_names import is_dead_letter_stream, owner_of
from millwheel.rpc.clock import wall_now
from millwheel.worker.interval import IntervalCore
from millwheel.worker.interval.measures import Distribution, IntervalMeasures
from millwheel.worker.log import LogCore
from millwheel.worker.log.letter_figures import retention_used, unhandled_letters
from millwheel.worker.process.metrics import LABELS, gauge_of
from millwheel.worker.process.refused_deliveries import injector_name
from millwheel.worker.process.tallies import ComputationName, Tallies
from millwheel.worker.process.waiting_work import system_lag_seconds

__all__ = ["MeasureCollector", "add_distribution"]

_BY_SENDER: Final = [*LABELS, "stream", "injector"]

_DISTRIBUTIONS: Final[dict[str, tuple[str, Callable[[IntervalMeasures], Distribution]]]] = {
    "millwheel_commit_latency_seconds": (
        "From the receipt of a record to its commit",
        lambda measures: measures.commit_latency,
    ),
    "millwheel_ack_latency_seconds": (
        "From the commit of a production to the ACK of its consumer",
        lambda measures: measures.ack_latency,
    ),
    "millwheel_append_seconds": (
        "From the sending of a commit to the store until it is known to be there",
        lambda measures: measures.append_seconds,
    ),
    "millwheel_entry_bytes": ("Size of a commit's journal entry", lambda measures: measures.entry_bytes),
    "millwheel_entry_records": ("Records of a commit", lambda measures: measures.entry_records),
}


class MeasureCollector(Collector):
    """Reads the measures at each scrape, in the scraper's thread."""

    def __init__(
        self,
        tallies: Tallies,
        logs: Callable[[], Iterable[LogCore]],
        now: Callable[[], int] = wall_now,
        repeating: Callable[[], int] = int,
    ):
        """
        Args:
            tallies: The interval cores and their measures.
            logs: The cores of the logs that run here.
            now: The wall clock, in microseconds.
            repeating: How many intervals and logs wait for a call that has failed and is repeated.
        """
        self._tallies = tallies
        self._logs = logs
        self._now = now
        self._repeating = repeating

    def collect(self) -> Iterator[Metric]:
        """All metrics at this moment."""
        measures = self._tallies.measures()
        for name, (help_text, of) in _DISTRIBUTIONS.items():
            family = HistogramMetricFamily(name, help_text, labels=LABELS)
            for place, measured in measures.items():
                add_distribution(family, place, of(measured))
            yield family
        yield from self._by_hook(measures)
        yield from self._by_stream(measures)
        yield self._refusals()
        yield from self._of_intervals()
        yield from self._of_logs()
        yield GaugeMetricFamily(
            "millwheel_repeating_journals",
            "Intervals and logs whose call to the store, such as a commit, has failed and is repeated",
            value=self._repeating(),
        )

    def _by_hook(self, measures: Mapping[ComputationName, IntervalMeasures]) -> Iterator[Metric]:
        family = HistogramMetricFamily(
            "millwheel_hook_call_seconds",
            "Time of a call of a hook, as the mean of each batch of calls",
            labels=[*LABELS, "hook"],
        )
        for place, measured in measures.items():
            for hook, distribution in list(measured.hook_seconds.items()):
                add_distribution(family, (*place, hook), distribution)
        yield family

    def _by_stream(self, measures: Mapping[ComputationName, IntervalMeasures]) -> Iterator[Metric]:
        labels = [*LABELS, "stream"]
        records = CounterMetricFamily("millwheel_received_records", "Fresh records received", labels=labels)
        sizes = CounterMetricFamily("millwheel_received_bytes", "Bytes of the values of fresh records", labels=labels)
        for place, measured in measures.items():
            for stream, (count, size, *_) in list(measured.received.items()):
                records.add_metric([*place, stream], count)
                sizes.add_metric([*place, stream], size)
        yield from (records, sizes)

    def _refusals(self) -> Metric:
        refused = CounterMetricFamily(
            "millwheel_refused_deliveries",
            "Deliveries refused. A log has no topology and no computation; an interval that sends is no injector",
            labels=[*_BY_SENDER, "reason"],
        )
        for place, count in self._tallies.refused.totals().items():
            refused.add_metric(list(place), count)
        return refused

    def _of_intervals(self) -> Iterator[Metric]:
        lags: dict[ComputationName, float] = {}
        full: dict[ComputationName, float] = {}
        unacked: Counter[tuple[str, ...]] = Counter()
        cores, _ = self._tallies.look()
        for place, core in cores:
            lags[place] = max(lags.get(place, 0.0), system_lag_seconds(core, self._now()))
            full[place] = full.get(place, 0.0) + (not core.has_room)
            for (stream, sender), count in _unacked(core).items():
                unacked[*place, stream, injector_name(sender)] += count
        yield gauge_of(
            "millwheel_system_lag_seconds",
            "How long the oldest work of any interval has waited: a record for its commit, or a production for its ACK",
            lags,
        )
        yield gauge_of("millwheel_full_intervals", "Intervals that refuse records for lack of room", full)
        waiting = GaugeMetricFamily(
            "millwheel_unacked_records", "Records received and not ACKed, by stream and injector", labels=_BY_SENDER
        )
        for labels, count in unacked.items():
            waiting.add_metric(list(labels), count)
        yield waiting

    def _of_logs(self) -> Iterator[Metric]:
        records = GaugeMetricFamily("millwheel_log_records", "Records that a stream's log keeps", labels=["stream"])
        sizes = GaugeMetricFamily("millwheel_log_bytes", "Bytes of these records", labels=["stream"])
        appended = CounterMetricFamily("millwheel_log_appended_records", "Records of a log so far", labels=["stream"])
        lags = GaugeMetricFamily(
            "millwheel_cursor_lag_records", "Records that a cursor has not ACKed", labels=["stream", "cursor"]
        )
        full = GaugeMetricFamily(
            "millwheel_log_full", "Whether the log refuses records for lack of room: 1 or 0", labels=["stream"]
        )
        for log in self._logs():
            stream, kept = [log.state.config.stream], log.state.records
            records.add_metric(stream, kept.end - kept.start)
            sizes.add_metric(stream, kept.kept)
            appended.add_metric(stream, kept.end)
            full.add_metric(stream, not log.has_room)
            for cursor, offset in list(log.state.cursors.durable.items()):
                lags.add_metric([*stream, cursor], kept.end - offset)
        yield from (records, sizes, appended, lags, full)
        yield from self._of_letters()

    def _of_letters(self) -> Iterator[Metric]:
        unhandled = GaugeMetricFamily(
            "millwheel_unhandled_dead_letters", "Dead letters neither replayed nor discarded", labels=["topology"]
        )
        used = GaugeMetricFamily(
            "millwheel_dead_letter_retention_used",
            "Share of their log's retention that the oldest unhandled dead letter has used; it is dropped at 1",
            labels=["topology"],
        )
        for log in self._logs():
            if is_dead_letter_stream(log.state.config.stream):
                topology = [owner_of(log.state.config.stream)]
                unhandled.add_metric(topology, unhandled_letters(log.state))
                used.add_metric(topology, retention_used(log.state))
        yield from (unhandled, used)


def add_distribution(family: HistogramMetricFamily, labels: Iterable[str], distribution: Distribution) -> None:
    """Add a distribution. The counts of Prometheus are of all values up to a bound."""
    bounds = [*map(str, distribution.bounds), "+Inf"]
    counts = accumulate(distribution.counts)
    family.add_metric(list(labels), list(zip(bounds, counts, strict=True)), distribution.sum)


def _unacked(core: IntervalCore) -> Mapping[tuple[str, str], int]:
    """The uncommitted records of an interval, by stream and sender's name."""
    found: defaultdict[tuple[str, str], int] = defaultdict(int)
    for receipt in list(core.state.intake.unfinished):
        delivery = receipt.delivery
        found[delivery.stream, delivery.sender.name] += receipt.open
    return found
