"""What decides in the count from topic to topic: its input, the counts that follow, and their comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import msgspec
import pytest

import millwheel as mw
from bench.kafka_count import program
from bench.kafka_count.checking import Comparison, compare, longest_pause, steady_rate
from bench.kafka_count.hits import EPOCH_MS, Hits
from bench.kafka_count.topics import result_of, sum_of
from millwheel.testing import TopologyHarness
from millwheel.windows import Result
from tests.faults import test_kafka_endurance as endurance

HITS = Hits(records=5_000, keys=10, per_second=100, window_ms=1_000)
A, B = ("a", 0), ("b", 0)


def naive(hits: Hits) -> Counter[tuple[str, int]]:
    """The counts by what is in the topic: the values and the timestamps of its records."""
    found: Counter[tuple[str, int]] = Counter()
    for message in map(hits.message, range(hits.total)):
        if message.at < hits.end_ms:
            found[msgspec.json.decode(message.value)["key"], message.at // hits.window_ms * hits.window_ms] += 1
    return found


def test_expected_counts_are_those_of_the_topic() -> None:
    assert HITS.counts() == naive(HITS)
    assert HITS.counts().total() == HITS.records


def test_expected_sums_are_those_of_the_topic() -> None:
    found: Counter[tuple[str, int]] = Counter()
    for message in map(HITS.message, range(HITS.records)):
        value = msgspec.json.decode(message.value)
        found[value["key"], message.at // HITS.window_ms * HITS.window_ms] += value["number"]
    assert HITS.sums() == found


def test_each_record_follows_from_its_number_alone() -> None:
    assert [HITS.message(number) for number in (7, 3, 7)] == [HITS.message(number) for number in (7, 3, 7)]
    numbers = [msgspec.json.decode(HITS.message(number).value)["number"] for number in range(HITS.total)]
    assert numbers == list(range(HITS.total))


def test_a_run_may_begin_at_another_time() -> None:
    later = replace(HITS, first_ms=EPOCH_MS + 60_000)
    assert later.counts() == {(key, start + 60_000): count for (key, start), count in HITS.counts().items()}
    assert later.counts() == naive(later)
    assert later.message(0).at == EPOCH_MS + 60_000


def test_disorder_in_a_partition_is_less_than_expected() -> None:
    newest, most = dict.fromkeys(range(HITS.partitions), 0), 0
    for message in map(HITS.message, range(HITS.total)):
        most = max(most, newest[message.partition] - message.at)
        newest[message.partition] = max(newest[message.partition], message.at)
    assert 0 < most < HITS.out_of_order_ms


@pytest.mark.parametrize("records", [1, 99, 100, 101, 5_000])
def test_each_key_and_partition_is_closed_behind_all_windows(records: int) -> None:
    hits = Hits(records, keys=10, per_second=100, window_ms=1_000)
    closing = [hits.message(number) for number in range(hits.records, hits.total)]
    assert {one.key for one in closing} == {b"key-%05d" % number for number in range(hits.keys)}
    assert {one.partition for one in closing} == set(range(hits.partitions))
    assert min(one.at for one in closing) - hits.out_of_order_ms >= hits.end_ms
    assert EPOCH_MS <= max(start for _, start in hits.counts()) < hits.end_ms


@pytest.mark.parametrize(
    ("results", "lost", "twice", "results_twice"),
    [
        ([(A, 3), (B, 2)], 0, 0, 0),
        ([(A, 3)], 2, 0, 0),
        ([(A, 1), (B, 2)], 2, 0, 0),
        ([(A, 4), (B, 2)], 0, 1, 0),
        ([(A, 2), (B, 3)], 1, 1, 0),
        ([(A, 3), (B, 2), (A, 3)], 0, 0, 1),
        ([(A, 2), (B, 2), (A, 1)], 1, 0, 1),
        ([(A, 3), (B, 2), (("c", 0), 7)], 0, 7, 0),
        ([(A, 3), (B, 2), (("b", 1), 2)], 0, 2, 0),
        ([], 5, 0, 0),
    ],
)
def test_a_comparison_finds_what_is_lost_or_twice(
    results: list[tuple[tuple[str, int], int]], lost: int, twice: int, results_twice: int
) -> None:
    found = compare({A: 3, B: 2}, results)
    assert (found.lost, found.twice, found.results_twice) == (lost, twice, results_twice)
    assert found.right == (not lost and not twice and not results_twice) == (not found.examples)


def test_a_comparison_shows_windows_that_are_wrong() -> None:
    assert compare({A: 3, B: 2}, [(A, 3)]) == Comparison(2, 0, 0, ("b from 0: 2 records, and the results []",))


def test_a_pause_is_the_longest_time_between_results() -> None:
    assert longest_pause([(1.0, 5), (2.0, 1), (7.5, 2), (8.0, 9)]) == 5.5
    assert longest_pause([(1.0, 5)]) == longest_pause([]) == 0


def test_a_steady_rate_leaves_out_the_start() -> None:
    assert steady_rate([(5.0, 10), (6.0, 40), (8.0, 50)], 100) == 30
    assert steady_rate([(5.0, 9), (6.0, 41), (8.0, 50)], 100) == 25
    assert steady_rate([(5.0, 100)], 100) == steady_rate([], 100) == 0


def test_a_result_is_read_from_its_record() -> None:
    assert result_of(b'{"key":"key-00001","start":1700000000000,"count":7}') == (("key-00001", 1_700_000_000_000), 7)
    with pytest.raises(msgspec.MsgspecError):
        result_of(b"{}")


def results(counts: Mapping[tuple[str, int], int], sums: Mapping[tuple[str, int], int]) -> list[bytes]:
    """What the topology writes, with the first result of each window alone."""
    given = [{"key": one[0], "start": one[1], "count": counts[one], "sum": sums[one]} for one in counts]
    return [msgspec.json.encode(one) for one in given]


def test_one_that_is_lost_and_another_twice_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their count is right."""
    monkeypatch.setattr(endurance, "HITS", HITS)
    counts, sums = endurance.HITS.counts(), endurance.HITS.sums()
    assert endurance.wrong_sums(results(counts, sums)) == []
    window = next(iter(sums))
    sums[window] += 1
    assert compare(counts, [result_of(one) for one in results(counts, sums)]).right
    (wrong,) = endurance.wrong_sums(results(counts, sums))
    assert wrong.startswith("other records were counted")
    assert f"{window[0]} from {window[1]}" in wrong


def test_a_run_that_killed_nothing_shows_nothing() -> None:
    assert endurance.not_killed(Counter({"worker": 2, "broker": 1, "leading master": 1})) == []
    assert endurance.not_killed(Counter({"worker": 1, "broker": 1})) == [
        "no leading master was killed: let the run be longer (SECONDS=)"
    ]


@pytest.mark.parametrize("topology", [program.counted, program.hooked], ids=lambda one: str(one.name))
def test_windows_and_a_hook_by_hand_count_the_same(topology: mw.Topology) -> None:
    hits = Hits(records=600, keys=10, per_second=100, window_ms=1_000)
    sent = [hits.message(number) for number in range(hits.records)]
    records = [(msgspec.json.decode(one.value, type=program.Hit), mw.Timestamp(one.at * 1_000)) for one in sent]
    with TopologyHarness(topology, fed=["hits"], captured=["results"]) as harness:
        harness.send_all("hits", records)
        harness.advance(mw.Timestamp(hits.end_ms * 1_000))
        found = [result_of(program.as_json(one)) for one in harness.values("counts")]
    assert compare(hits.counts(), found).right


def test_a_topology_writes_counts_and_sums() -> None:
    assert [one.name for one in (program.counted, program.summed)] == ["counted", "summed"]
    result = Result("key-00001", mw.Timestamp(5_000_000), mw.Timestamp(6_000_000), 3)
    written = program.as_json(program.Summed("key-00001", mw.Timestamp(5_000_000), 3, 12))
    assert (result_of(written), sum_of(written)) == ((("key-00001", 5_000), 3), (("key-00001", 5_000), 12))
    assert result_of(program.as_json(result)) == (("key-00001", 5_000), 3)
