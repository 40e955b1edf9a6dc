"""Correct topologies: their types are found, their specs are deterministic, their computations compile (3, 4)."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec
import pytest

import millwheel as mw
from millwheel.rpc.v1 import topology_pb2
from millwheel.sdk.compiled import compile_computation, consumers_of
from millwheel.sdk.context import Context
from millwheel.sdk.function_code import code_digest
from millwheel.sdk.record_schema import record_schema
from millwheel.sdk.scope import Scope, StateCell

T = TypeVar("T")
S = TypeVar("S")


class Query(msgspec.Struct):
    text: str
    origin: str = ""


class Count(msgspec.Struct):
    text: str
    count: int


class Counter(mw.Computation[Query, int]):
    def process_record(self, ctx: mw.Context[int], record: mw.Record[Query]) -> None:
        ctx.state += 1


class Printer(mw.Computation[Count]):
    async def process_record(self, ctx: mw.Context[None], record: mw.Record[Count]) -> None:
        raise AssertionError("never called here")


class Anything(mw.Computation[Any, None]):
    def process_record(self, ctx: mw.Context[None], record: mw.Record[Any]) -> None:
        raise AssertionError("never called here")


class Base(mw.Computation[T, dict[str, T]], Generic[S, T]):
    def process_record(self, ctx: mw.Context[dict[str, T]], record: mw.Record[T]) -> None:
        raise AssertionError("never called here")


class Middle(Base[int, T]):
    """Fills one of two variables, and not the one that comes first."""


class Filled(Middle["Query"]):
    """Named before it is known, as in a file's own order."""


def small(name: str = "small") -> mw.Topology:
    topology = mw.Topology(name)
    topology.source("queries", Query)
    topology.add(Counter, inputs={"queries": mw.key("text")}, outputs={"counts": Count})
    topology.add(Printer, inputs={"counts": mw.key("text")})
    return topology


def test_a_right_topology_has_no_problems() -> None:
    topology = small()
    assert topology.validate() == []
    topology.check()


@pytest.mark.parametrize(
    ("given", "input_type", "state_type"),
    [
        (Counter, Query, int),
        (Counter(), Query, int),
        (Printer, Count, type(None)),
        (Filled, Query, dict[str, Query]),
        (Base[int, Query](), Query, dict[str, Query]),
        (Base[int, Query], Query, dict[str, Query]),
        (Middle[Count](), Count, dict[str, Count]),
    ],
)
def test_types_are_those_of_the_class_also_through_generic_bases(given: Any, input_type: Any, state_type: Any) -> None:
    topology = mw.Topology("t")
    topology.source("s", input_type)
    topology.add(given, inputs={"s": mw.key("text")}, name="c")
    assert topology.validate() == []
    computation = topology.plan().computations["c"]
    assert (computation.input_type, computation.state_type) == (input_type, state_type)


@pytest.mark.parametrize(
    ("class_name", "expected"),
    [
        ("WindowCounter", "window-counter"),
        ("HTTPLog", "http-log"),
        ("Top10List", "top10-list"),
        ("dip_detector", "dip-detector"),
        ("_Private", "private"),
        ("C", "c"),
    ],
)
def test_the_default_name_is_the_classs_in_kebab_case(class_name: str, expected: str) -> None:
    topology = mw.Topology("t")
    topology.source("s", Query)
    topology.add(type(class_name, (Counter,), {}), inputs={"s": mw.key("text")})
    assert list(topology.plan().computations) == [expected]


def test_a_streams_type_is_declared_or_what_its_consumers_take() -> None:
    class Both(mw.Computation[Query | int, None]):
        def process_record(self, ctx: mw.Context[None], record: mw.Record[Query | int]) -> None: ...

    topology = mw.Topology("t")
    topology.source("injected", Query)
    topology.external("other/theirs", int)
    topology.add(Counter, name="first", inputs={"injected": mw.key("text")}, outputs=["numbers"])
    topology.add(Anything, inputs={"numbers": mw.key(str)}, outputs=["unions"])
    topology.add(Both, inputs={"other/theirs": mw.key(str), "unions": mw.key(str)}, outputs=["queries", "unread"])
    topology.add(Counter, name="last", inputs={"queries": mw.key("text")}, outputs={"stated": Count})
    assert {name: stream.type_name for name, stream in topology.plan().streams.items()} == {
        "injected": "Query",
        "numbers": "Any",
        "unions": "Query",
        "other/theirs": "int",
        "queries": "Query",
        "unread": "Any",
        "stated": "Count",
    }


@pytest.mark.guarantee("G14")
def test_diverted_late_records_keep_their_type() -> None:
    topology = mw.Topology("t")
    topology.source("queries", Query)
    topology.add(Counter, inputs={"queries": mw.key("text")}, outputs=["late"], late=mw.divert("late"))
    assert topology.plan().streams["late"].type is Query
    assert compile_computation(topology, "counter").options.late == mw.divert("late")


def test_dead_letters_can_be_consumed_and_name_their_writers() -> None:
    class Undertaker(mw.Computation[mw.DeadLetter, None]):
        def process_record(self, ctx: mw.Context[None], record: mw.Record[mw.DeadLetter]) -> None: ...

    topology = small()
    letters = "dead-letters"
    topology.add(Counter, name="frail", inputs={"queries": mw.key("text")}, on_failure=mw.dead_letter(after=2))
    topology.add(Undertaker, inputs={letters: mw.key("computation")})
    plan = topology.plan()
    assert plan.streams[letters].type is mw.DeadLetter
    assert plan.streams[letters].producers == ["frail"]
    assert set(compile_computation(topology, "frail").outputs) == {letters}
    spec = topology.to_spec()
    assert letters not in [stream.name for stream in spec.streams]
    assert [list(one.outputs) for one in spec.computations if one.name == "frail"] == [[]]


def test_declared_feedback_edges_close_cycles() -> None:
    topology = small()
    topology.add(
        Counter,
        name="loop",
        inputs={"queries": mw.key("text"), "again": mw.key("text", feedback=True)},
        outputs={"again": Query},
    )
    topology.check()
    edges = [edge for computation in topology.to_spec().computations for edge in computation.inputs if edge.feedback]
    assert [edge.stream for edge in edges] == ["small/again"]


def test_the_spec_holds_everything_that_was_declared() -> None:
    topology = mw.Topology("full")
    topology.source(
        "queries",
        Query,
        id_slack=mw.hours(2),
        allowed_skew=mw.minutes(5),
        injectors=["two", "one"],
        retention=mw.Retention(age=mw.hours(1)),
    )
    topology.external("other/theirs", Query)
    topology.stream("counts", Count, retention=mw.Retention(bytes=1000))
    topology.add(
        Counter,
        inputs={"other/theirs": mw.key(str), "queries": mw.key("origin", "text")},
        outputs=["late", "counts"],
        exactly_once=False,
        late=mw.divert("late"),
        on_failure=mw.stop(after=4, initial=mw.seconds(1), maximum=mw.seconds(9)),
        straggler_delay=mw.milliseconds(1500),
    )
    spec = topology.to_spec(topology_pb2.CodeReference(digest="d", entry_point="m:a"))
    by_text = topology_pb2.KeySpec(function="builtins:str", code=code_digest([str]))
    assert spec == topology_pb2.TopologySpec(
        name="full",
        code=topology_pb2.CodeReference(digest="d", entry_point="m:a"),
        streams=[
            topology_pb2.StreamSpec(
                name="full/counts",
                record_type="Count",
                format=topology_pb2.VALUE_FORMAT_MSGPACK,
                retention=topology_pb2.Retention(max_bytes=1000),
                schema=record_schema(Count),
            ),
            topology_pb2.StreamSpec(
                name="full/late",
                record_type="Query",
                format=topology_pb2.VALUE_FORMAT_MSGPACK,
                schema=record_schema(Query),
            ),
            topology_pb2.StreamSpec(
                name="full/queries",
                record_type="Query",
                format=topology_pb2.VALUE_FORMAT_MSGPACK,
                injected=True,
                id_slack_us=7_200_000_000,
                expected_injectors=["one", "two"],
                retention=topology_pb2.Retention(max_age_us=3_600_000_000),
                allowed_skew_us=300_000_000,
                schema=record_schema(Query),
            ),
            topology_pb2.StreamSpec(
                name="other/theirs",
                record_type="Query",
                format=topology_pb2.VALUE_FORMAT_MSGPACK,
                external=True,
                schema=record_schema(Query),
            ),
        ],
        computations=[
            topology_pb2.ComputationSpec(
                name="counter",
                implementation=f"{__name__}:Counter",
                inputs=[
                    topology_pb2.InputSpec(stream="full/queries", key=topology_pb2.KeySpec(fields=["origin", "text"])),
                    topology_pb2.InputSpec(stream="other/theirs", key=by_text),
                ],
                outputs=["full/counts", "full/late"],
                strong_productions=True,
                late_policy=topology_pb2.LATE_POLICY_DIVERT,
                late_stream="full/late",
                failure_policy=topology_pb2.FailurePolicy(
                    action=topology_pb2.FAILURE_ACTION_STOP,
                    max_attempts=4,
                    initial_backoff_us=1_000_000,
                    max_backoff_us=9_000_000,
                ),
                state_type="int",
                state=topology_pb2.StateSchema(
                    format=topology_pb2.VALUE_FORMAT_MSGPACK,
                    fields=[topology_pb2.StateField(type="int")],
                    version=1,
                    schema=record_schema(int),
                ),
                straggler_delay_us=1_500_000,
            )
        ],
    )


def test_the_spec_says_that_productions_are_weak() -> None:
    topology = mw.Topology("weak")
    topology.source("queries", Query)
    topology.add(Counter, inputs={"queries": mw.key("text")}, outputs=["counts"], strong=False)
    (spec,) = topology.to_spec(topology_pb2.CodeReference(digest="d", entry_point="m:a")).computations
    assert (spec.exactly_once, spec.strong_productions) == (True, False)


def test_the_spec_is_that_of_the_content_and_not_of_the_order() -> None:
    def stored(topology: mw.Topology) -> bytes:
        return topology.to_spec().SerializeToString(deterministic=True)

    one = small()
    other = mw.Topology("small")
    other.add(Printer, inputs={"counts": mw.key("text")})
    other.add(Counter, inputs={"queries": mw.key("text")}, outputs={"counts": Count})
    other.source("queries", Query)
    assert stored(one) == stored(other)
    other.add(Counter, name="more", inputs={"queries": mw.key("text")})
    assert stored(one) != stored(other)


@pytest.mark.parametrize("policy", [mw.retry(), mw.dead_letter(after=7), mw.stop(initial=mw.seconds(2))])
def test_failure_policies_go_over_the_wire_whole(policy: mw.FailurePolicy) -> None:
    spec = policy.to_proto()
    sent = spec.action, spec.max_attempts, spec.initial_backoff_us, spec.max_backoff_us
    assert sent == (policy.action.value, policy.max_attempts, policy.initial_backoff, policy.max_backoff)


def test_compiled_computations_name_their_asynchronous_hooks() -> None:
    topology = small()
    counter, printer = compile_computation(topology, "counter"), compile_computation(topology, "printer")
    assert (counter.record_is_async, printer.record_is_async) == (False, True)
    assert (counter.timer_is_async, printer.timer_is_async) == (False, False)
    assert counter.options == type(counter.options)()
    assert list(counter.outputs) == ["counts"]
    with pytest.raises(mw.ValueEncodeError, match="stream 'counts' carries Count, not Query"):
        counter.outputs["counts"](Query("a"))
    assert printer.state.new() is None


def test_compiling_with_verify_finds_what_cannot_be_read_again() -> None:
    topology = small()
    wrong = Count("a", "many")  # type: ignore[arg-type]
    assert compile_computation(topology, "counter", verify=False).outputs["counts"](wrong)
    with pytest.raises(
        mw.ValueEncodeError, match="computation 'counter', stream 'counts': this Count could not be read"
    ):
        compile_computation(topology, "counter").outputs["counts"](wrong)


def test_compiling_needs_a_valid_topology_and_a_name_of_it() -> None:
    with pytest.raises(
        mw.UsageError, match=r"topology 'small' has no computation 'countr' \(did you mean 'counter'\?\)"
    ):
        compile_computation(small(), "countr")
    with pytest.raises(mw.TopologyError):
        compile_computation(mw.Topology("Bad"), "counter")


@pytest.mark.paper(section="fig. 5")
def test_consumers_are_listed_by_name_with_their_keys() -> None:
    topology = small()
    topology.add(Counter, name="by-origin", inputs={"queries": mw.key("origin", "text")})
    extracted = [(name, extract(Query("a", "de"))) for name, extract in consumers_of(topology, "queries")]
    assert extracted == [("by-origin", b"de|a"), ("counter", b"a")]
    assert consumers_of(topology, "unheard-of") == []


@pytest.mark.paper(section="4.6")
def test_a_timer_without_a_hook_names_computation_key_and_tag() -> None:
    context: Context[int] = Context(b"k", StateCell(), Scope("counter", {}, int, lambda _: 0, handles_timers=True))
    with pytest.raises(mw.UsageError) as raised:
        Counter().process_timer(context, mw.Timer("end", mw.Timestamp(3)))
    assert str(raised.value) == (
        "Counter was woken by the timer 'end' of key 'k', but does not override process_timer(self, ctx, timer)"
    )


@pytest.mark.paper(section="4.6")
def test_a_timer_that_nothing_would_handle_fails_where_it_is_set() -> None:
    context: Context[int] = Context(b"k", StateCell(), Scope("counter", {}, int, lambda _: 0, handles_timers=False))
    with pytest.raises(mw.UsageError, match="computation 'counter' sets a timer, and has no process_timer"):
        context.set_timer(mw.Timestamp(3))


def test_changes_after_a_check_are_seen() -> None:
    topology = small()
    topology.check()
    topology.stream("orphan", int)
    assert [problem.where for problem in topology.validate()] == ["stream 'orphan'"]
