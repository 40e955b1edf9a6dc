"""What a worker reports of sources some of whose records cannot be read: of the last reads, and not of all."""

from __future__ import annotations

from millwheel.model.time import minutes
from millwheel.worker.interval.measures import IntervalMeasures
from millwheel.worker.process.source_readings import SourceReadings

PLACE = ("shop", "bids-reader")
MINUTE = int(minutes(1))


class Source:
    """A source, and what is reported of it once a minute."""

    def __init__(self) -> None:
        self.now = 0
        self.measures = IntervalMeasures()
        self.readings = SourceReadings(0)

    def minute(self, good: int = 0, bad: int = 0) -> tuple[int, int] | None:
        """A minute in which so many records are read. Returns the records and the bad ones that are reported."""
        self.now += MINUTE
        if good or bad:
            self.measures.connector.has_read(
                "shop/bids", "0", [10] * (good + bad), 0, ended=False, bad=bad, bad_stream="shop/bad", last_error="why"
            )
        found = list(self.readings.with_bad_records(self.now, {PLACE: self.measures}))
        for one in found:
            assert (one.topology, one.computation, one.stream) == (*PLACE, "shop/bids")
            assert (one.bad_stream, one.last_error) == ("shop/bad", "why")
        return (found[0].records, found[0].bad) if found else None


def test_a_source_without_bad_records_is_not_reported() -> None:
    source = Source()
    assert [source.minute(), source.minute(good=5), source.minute()] == [None] * 3


def test_the_first_report_has_all_that_was_read() -> None:
    source = Source()
    assert source.minute() is None
    assert source.minute(good=1, bad=7) == (8, 7)


def test_what_was_read_long_ago_does_not_count() -> None:
    """A source that was good for days, and then is bad, is bad after some minutes. And the other way round."""
    source = Source()
    for _ in range(60):
        assert source.minute(good=1_000) is None
    reported = [source.minute(bad=1_000) for _ in range(15)]
    assert reported[-1] == (15_000, 15_000)
    reported = [source.minute(good=1_000) for _ in range(15)]
    assert reported[-2:] == [(15_000, 1_000), None]


def test_the_last_records_count_however_long_they_took() -> None:
    source = Source()
    source.minute(good=1_000)
    for _ in range(99):
        source.minute(bad=1)
        for _ in range(60):
            reported = source.minute()
    assert reported == (1_099, 99)
    source.minute(bad=1)
    assert source.minute() == (100, 100), "a day without a read changes nothing"
