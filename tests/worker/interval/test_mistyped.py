"""A hook fails if its values could not be decoded again. Nothing of the call is stored (4.3, 4.4)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import millwheel as mw
from millwheel.sdk.compiled import compile_computation
from millwheel.testing import TopologyHarness
from millwheel.worker.interval.entry import decode_entry
from millwheel.worker.messages import HookFailed
from tests.worker.interval.driver import IntervalDriver


class Out(msgspec.Struct):
    x: float


class Careless(mw.Computation[str, dict[int, int]]):
    """Counts. For "state" and "out" it returns a value of another type."""

    def process_record(self, ctx: mw.Context[dict[int, int]], record: mw.Record[str]) -> None:
        ctx.state[len(ctx.state)] = 1
        if record.value.endswith("state"):
            ctx.state["a"] = 1  # type: ignore[index]
        ctx.produce("out", Out("text" if record.value.endswith("out") else 1))  # type: ignore[arg-type]


def _topology() -> mw.Topology:
    topology = mw.Topology("careless")
    topology.source("in", str)
    topology.add(
        Careless,
        inputs={"in": mw.key(lambda value: value[0])},
        outputs={"out": Out},
        on_failure=mw.dead_letter(after=1),
    )
    return topology


@pytest.mark.guarantee("G2", section="4.3")
@pytest.mark.parametrize(
    ("record", "parts"),
    [
        ("k state", ["key 'k'", "computation 'careless', state", "dict[int, int]", "got `str` - at `key` in `$`"]),
        ("k out", ["key 'k'", "computation 'careless', stream 'out'", "Expected `float`, got `str` - at `$.x`", "Out"]),
    ],
)
def test_the_harness_raises_what_a_hook_made_of_a_wrong_type(record: str, parts: list[str]) -> None:
    harness = TopologyHarness(_topology())
    harness.send("in", "k fine", mw.Timestamp(1))
    with pytest.raises(mw.ValueEncodeError) as raised:
        harness.send("in", record, mw.Timestamp(2))
    said = "\n".join([str(raised.value), *raised.value.__notes__])
    assert [part for part in parts if part not in said] == []
    harness.crash()
    assert harness.state("careless", "k") == {0: 1}, "nothing of it was stored"
    harness.send("in", "k fine", mw.Timestamp(3))
    assert harness.state("careless", "k") == {0: 1, 1: 1}
    assert harness.values("out") == [Out(1), Out(1)]


class Idle(mw.Computation[Out, None]):
    """Does nothing."""

    def process_record(self, ctx: mw.Context[None], record: mw.Record[Out]) -> None:
        pass


def test_the_harness_refuses_a_record_of_a_wrong_type_when_sent() -> None:
    topology = mw.Topology("outs")
    topology.source("in", Out)
    topology.add(Idle, inputs={"in": mw.key(lambda value: "k")})
    with pytest.raises(mw.ValueEncodeError, match=r"stream 'in'.*Expected `float`, got `str` - at `\$.x`"):
        TopologyHarness(topology).send("in", Out("text"), mw.Timestamp(1))  # type: ignore[arg-type]


class Strings(mw.Computation[tuple[str, str], dict[int, int]]):
    """Assigns each value to its state."""

    def process_record(self, ctx: mw.Context[dict[int, int]], record: mw.Record[tuple[str, str]]) -> None:
        what: Any = record.value[1]
        ctx.state[int(what) if what.isdigit() else what] = 1


@pytest.mark.guarantee("G2", section="4.4")
def test_one_mistyped_state_of_a_batch_fails_alone() -> None:
    """Other keys and records are committed, and so are other records of its own key."""
    driver = IntervalDriver(Strings(), on_failure=mw.dead_letter(after=1))
    driver.deliver(("k", "1", 1), ("k", "bad", 2), ("j", "2", 3), ("k", "3", 4))
    driver.commit_all()
    (failed,) = driver.take(HookFailed)
    assert "key 'k', record of stream 'in' at 1970-01-01T00:00:00.000002Z: ValueEncodeError" in failed.message
    stored = dict(row for blob in driver.entries for row in decode_entry(blob, "entry").states)
    assert {key: msgspec.msgpack.decode(blob, strict=False, type=dict[int, int]) for key, blob in stored.items()} == {
        b"k": {1: 1, 3: 1},
        b"j": {2: 1},
    }
    assert driver.state.counts.dead_letters == 1


@pytest.mark.guarantee("G2", section="4.4")
def test_mistyped_states_among_many_fail_alone() -> None:
    """A commit encodes its states in parts, each of many keys. Two parts have a mistyped state, and two have none."""
    driver = IntervalDriver(Strings(), on_failure=mw.dead_letter(after=1))
    mistyped = {300, 1_000}
    driver.deliver(*((f"k{at}", "bad" if at in mistyped else str(at), 1) for at in range(1_001)))
    driver.commit_all()
    assert len(driver.take(HookFailed)) == len(mistyped)
    rows = [row for blob in driver.entries for row in decode_entry(blob, "entry").states]
    stored = {key: msgspec.msgpack.decode(blob, strict=False, type=dict[int, int]) for key, blob in rows}
    assert stored == {b"k%d" % at: {at: 1} for at in range(1_001) if at not in mistyped}
    assert {key: cell.encoded for key, cell in driver.state.cells.items() if cell.encoded} == dict(rows)
    assert driver.state.counts.dead_letters == len(mistyped)


class Unencodable(mw.Computation[tuple[str, str], dict[int, int]]):
    """Its state has a value that no encoder takes."""

    def process_record(self, ctx: mw.Context[dict[int, int]], record: mw.Record[tuple[str, str]]) -> None:
        ctx.state[1] = object()  # type: ignore[assignment]


@pytest.mark.guarantee("G2", section="4.4")
def test_a_state_that_no_encoder_takes_is_named() -> None:
    driver = IntervalDriver(Unencodable(), on_failure=mw.dead_letter(after=1))
    driver.deliver(("k", "", 1))
    driver.commit_all()
    (failed,) = driver.take(HookFailed)
    assert "ValueEncodeError: computation 'test', state: a value of dict[int, int] cannot be encoded" in failed.message
    assert driver.state.counts.dead_letters == 1


class Assigning:
    """Assigns None for "none", otherwise the value."""

    def process_record(self, ctx: mw.Context[Any], record: mw.Record[tuple[str, str]]) -> None:
        what = record.value[1]
        ctx.state = None if what == "none" else int(what)


class AssignsInt(Assigning, mw.Computation[tuple[str, str], int]): ...


class AssignsOptional(Assigning, mw.Computation[tuple[str, str], int | None]): ...


class AssignsAny(Assigning, mw.Computation[tuple[str, str], Any]): ...


@pytest.mark.guarantee("G2", section="4.4")
def test_none_is_assigned_only_where_the_type_allows_it() -> None:
    """Regression: such an assignment deleted a state of any type. `ctx.state = ctx.state.update(...)` assigns None."""
    driver = IntervalDriver(AssignsInt())
    driver.deliver(("k", "5", 1), ("k", "none", 2))
    driver.commit_all()
    failed = driver.take(HookFailed)[-1]
    assert "ValueEncodeError: computation 'test', state carries int, not None: use `del ctx.state`" in failed.message
    assert failed.kind.permanent
    assert failed.kind.place.startswith("test_mistyped.py:"), "the line that assigned it"
    cell = driver.state.cells.get(b"k")
    assert cell is not None
    assert msgspec.msgpack.decode(cell.encoded) == 5


@pytest.mark.parametrize("computation", [AssignsOptional, AssignsAny])
def test_none_of_a_type_that_allows_it_is_no_state(computation: type[mw.Computation[Any, Any]]) -> None:
    driver = IntervalDriver(computation())
    for number, what in enumerate(("5", "none")):
        driver.deliver(("k", what, number))
        driver.commit_all()
    assert not driver.take(HookFailed)
    assert dict(decode_entry(driver.entries[-1], "entry").states) == {b"k": b""}


def test_a_state_that_a_hook_only_reads_is_not_decoded_again() -> None:
    decoded = []

    def decode(data: bytes) -> int:
        decoded.append(data)
        return int(data)

    class Own(mw.Computation[tuple[str, str], int]):
        state_codec = mw.Codec(lambda value: str(value).encode(), decode, lambda: 0)

        def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
            if record.value[1] == "count":
                ctx.state += 1
            assert ctx.state

    driver = IntervalDriver(Own())
    driver.deliver(("k", "count", 1))
    driver.commit_all()
    assert decoded[-1] == b"1"
    count = len(decoded)
    for at in (2, 3):
        driver.deliver(("k", "look", at))
        driver.commit_all()
    assert len(decoded) == count


def test_without_the_type_check_a_values_class_is_still_checked() -> None:
    compiled = compile_computation(_topology(), "careless", verify=False)
    assert compiled.state.check is None
    assert compiled.outputs["out"](Out("text"))  # type: ignore[arg-type]
    with pytest.raises(mw.ValueEncodeError, match="carries Out, not str"):
        compiled.outputs["out"]("text")
