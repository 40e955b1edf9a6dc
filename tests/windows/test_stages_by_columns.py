"""Windows by columns whose results go to windows and to hooks with other keys (4.2, 4.6; G1, G6, G7)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel import agg, windows
from millwheel.testing import TopologyHarness
from millwheel.windows import Result
from millwheel.worker.interval import IntervalSettings

NOON = 1_767_268_800_000_000
SECOND = 1_000_000
HOOKS = IntervalSettings(flush_interval=0, checkpoint_entries=20)
COLUMNS = replace(HOOKS, columns_from=1)


class Hit(msgspec.Struct):
    user: int
    price: int


class Largest(mw.Computation[Result[int], int]):
    """Keeps the largest result of a key, and produces each that is larger than the one before."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Result[int]]) -> None:
        if record.value.value > ctx.state:
            ctx.state = record.value.value
            ctx.produce("largest", record.value)


def by_group(result: Result[int]) -> str:
    """Some results have no key."""
    if result.value == 13:
        raise ValueError("no group")
    return f"group-{int(result.key) % 5}"


def stages(judged: bool = False) -> mw.Topology:
    """``judged``: results reach their consumers through a derived stream, which needs a context for each."""
    topology = mw.Topology("stages")
    hits = topology.source("hits", Hit)
    sums = hits.key_by("user").window(windows.tumbling(mw.seconds(2))).aggregate(
        "sums", agg.sum("price"), options={"on_failure": mw.dead_letter(after=1)}
    )  # fmt: skip
    if judged:
        sums.map(lambda one: one, Result[int]).named("judged")
    sums.key_by(by_group).window(windows.tumbling(mw.seconds(10))).aggregate("groups", agg.sum("value"))
    topology.add(Largest, name="largest", inputs={"sums": mw.key("end")}, outputs={"largest": Result[int]})
    return topology


def outcome(actions: list[tuple[str, Any]], limits: IntervalSettings, cuts: list[str]) -> dict[str, Any]:
    """What the stages do, by stream and key."""
    with TopologyHarness(stages(), split_at=cuts, now=mw.Timestamp(NOON), settings=limits) as harness:
        watermark, marks = 0, list[Any]()
        for kind, what in [*actions, ("update", True), ("finish", None)]:
            if kind == "send":
                harness.send_all("hits", [(Hit(u, p), mw.Timestamp(NOON + at * SECOND)) for u, at, p in what])
            elif kind == "advance":
                watermark = max(watermark, what)
                harness.advance(mw.Timestamp(NOON + watermark * SECOND))
            elif kind == "update":
                harness.update(stages(what))
            elif kind == "crash":
                harness.crash()
            else:
                harness.finish()
            marks.append([harness.watermark(name) for name in ("sums", "groups", "largest")])
        found: dict[str, Any] = {"marks": marks}
        for stream in ("sums", "groups", "largest"):
            found[stream] = sorted((one.value.end, one.value.key, one.value.value, one.timestamp)
                                   for one in harness.produced(stream))  # fmt: skip
            found[f"counts of {stream}"] = counts = dict(harness.counts(stream))
            del counts["duplicates"]  # see test_by_columns
        ends = {end for end, *_ in found["sums"]}
        found["states"] = {end: harness.state("largest", end) for end in ends}  # a result under another key changes it
        # Results of one window have no order among them. So which ones are the largest so far may differ.
        found["largest"] = {
            end: max(each[2] for each in found["largest"] if each[0] == end) for end, *_ in found["largest"]
        }
        return found


hits = st.tuples(st.integers(0, 30), st.integers(0, 12), st.one_of(st.integers(-5, 5), st.just(13)))
actions = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.lists(hits, min_size=1, max_size=40)),
        st.tuples(st.just("advance"), st.integers(0, 14)),
        st.tuples(st.just("update"), st.booleans()),
        st.just(("crash", None)),
    ),
    max_size=8,
)
MANY = [(user, at, 1 + user % 7) for user in range(30) for at in (1, 3)]


@pytest.mark.guarantee("G1", section="4.2")
@settings(max_examples=40)
@given(actions, st.sampled_from([[], ["group-2"], ["2", "group-1", "group-3"]]), st.sampled_from([3, 8_192]))
@example([("send", MANY), ("advance", 2), ("crash", None), ("update", True), ("advance", 4)], ["group-2"], 8_192)
@example([("send", [*MANY, (7, 1, 13), (8, 1, 13 - 2)]), ("advance", 4), ("crash", None)], ["2", "group-3"], 8_192)
def test_two_stages_by_columns_do_what_hooks_do(actions: list[Any], cuts: list[str], batch_records: int) -> None:
    limits = replace(COLUMNS, batch_records=batch_records)
    assert outcome(actions, limits, cuts) == outcome(actions, HOOKS, cuts)
