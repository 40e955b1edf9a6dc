"""All mistakes of a topology are reported at once, each with its place, reason and remedy. A test per mistake."""

# mypy: disable-error-code="func-returns-value"

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import msgspec
import pytest

import millwheel as mw

T = TypeVar("T")


def _plainly(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that forgets asynchronous hooks."""

    @functools.wraps(hook)
    def call(*arguments: Any) -> Any:
        return hook(*arguments)

    return call


class Query(msgspec.Struct):
    text: str
    weight: float = 0.0
    fast: bool = False


class Count(msgspec.Struct):
    text: str
    count: int


class NoDefault(msgspec.Struct):
    required: int


class Opaque:
    pass


class Counter(mw.Computation[Query, int]):
    def process_record(self, ctx: mw.Context[int], record: mw.Record[Query]) -> None: ...


class Printer(mw.Computation[Count, None]):
    def process_record(self, ctx: mw.Context[None], record: mw.Record[Count]) -> None: ...


class Parametric(Counter):
    def __init__(self, limit: int) -> None:
        self.limit = limit


class Broken(Counter):
    def __init__(self) -> None:
        raise RuntimeError("no such file")


class Hookless(mw.Computation[Query, int]):
    pass


class Untyped(mw.Computation):  # type: ignore[type-arg]
    def process_record(self, ctx: Any, record: Any) -> None: ...


class Open(mw.Computation[T, None], Generic[T]):
    def process_record(self, ctx: mw.Context[None], record: mw.Record[T]) -> None: ...


class Misspelt(mw.Computation["Quary", None]):  # type: ignore[name-defined]
    def process_record(self, ctx: Any, record: Any) -> None: ...


class Yielding(mw.Computation[Query, None]):
    def process_record(self, ctx: Any, record: Any) -> Iterator[str]:  # type: ignore[override]
        yield "lost"


class Bare(mw.Computation[Query, None]):
    @_plainly
    async def process_record(self, ctx: Any, record: Any) -> None: ...


class WrongHook(mw.Computation[Query, None]):
    def process_record(self, record: Any) -> None: ...  # type: ignore[override]


class NeedsState(mw.Computation[Query, NoDefault]):
    def process_record(self, ctx: mw.Context[NoDefault], record: mw.Record[Query]) -> None: ...


class OpaqueState(mw.Computation[Query, Opaque]):
    def process_record(self, ctx: mw.Context[Opaque], record: mw.Record[Query]) -> None: ...


class WrongCodec(Counter):
    state_codec = str  # type: ignore[assignment]


class Both(mw.Computation[Query | Count, None]):
    def process_record(self, ctx: mw.Context[None], record: mw.Record[Query | Count]) -> None: ...


def _add(topology: mw.Topology, computation: Any = Counter, **options: Any) -> None:
    """Add a computation that is correct, except for ``options``."""
    topology.source("queries", Query)
    topology.add(computation, **{"inputs": {"queries": mw.key("text")}, **options})


TEXT = mw.key("text")
ADVICE = (
    "use msgspec.Struct, dataclasses, typed dicts, containers and scalars, protobuf messages, bytes, "
    "or give it a {}millwheel.Codec(encode, decode)"
)
MISTAKES: dict[str, tuple[Callable[[mw.Topology], object], str]] = {
    # The computation itself.
    "no computation": (
        lambda t: _add(t, Opaque),
        f"computation 'opaque': add() takes a subclass of millwheel.Computation, or an instance of one, not {Opaque!r}",
    ),
    "a function": (
        lambda t: _add(t, len),
        "computation 'len': add() takes a subclass of millwheel.Computation, or an instance of one, not "
        "<built-in function len>",
    ),
    "abstract": (
        lambda t: _add(t, Hookless),
        "computation 'hookless': Hookless does not define process_record, without which it cannot run",
    ),
    "parameters": (
        lambda t: _add(t, Parametric),
        "computation 'parametric': Parametric() failed with TypeError: Parametric.__init__() missing 1 required "
        "positional argument: 'limit'; if it has parameters, add an instance: add(Parametric(...), ...)",
    ),
    "constructor": (
        lambda t: _add(t, Broken),
        "computation 'broken': Broken() failed with RuntimeError: no such file; if it has parameters, add an instance: "
        "add(Broken(...), ...)",
    ),
    "untyped": (
        lambda t: _add(t, Untyped),
        "computation 'untyped': Untyped does not state its types: write class "
        "Untyped(millwheel.Computation[Input, State])",
    ),
    "open type": (
        lambda t: _add(t, Open),
        "computation 'open': Open is generic in ~T: add a subclass or an instance that fills it, such as Open[...]()",
    ),
    "unknown type": (
        lambda t: _add(t, Misspelt),
        "computation 'misspelt': the types that Misspelt names cannot be found: NameError: name 'Quary' is not defined",
    ),
    "generator": (
        lambda t: _add(t, Yielding),
        "computation 'yielding': process_record is a generator, whose body would never run: use ctx.produce(...) "
        "instead of yield",
    ),
    "decorator": (
        lambda t: _add(t, Bare),
        "computation 'bare': process_record is `async def` under a decorator that is not, so nothing would await it: "
        "make the decorator's function `async def` too, and `await` the hook in it",
    ),
    "signature": (
        lambda t: _add(t, WrongHook),
        "computation 'wrong-hook': process_record(record: 'Any') -> 'None' cannot be called: it must be "
        "process_record(self, ctx, record)",
    ),
    "state without default": (
        lambda t: _add(t, NeedsState),
        "computation 'needs-state': the state type NoDefault has no default that can be stored (TypeError: Missing "
        "required argument 'required'): make it constructible without arguments, or NoDefault | None (starting "
        "as None), "
        "or set state_codec = millwheel.Codec(encode, decode, new)",
    ),
    "state type": (
        lambda t: _add(t, OpaqueState),
        "computation 'opaque-state': Opaque cannot be encoded: Opaque is no type known; "
        f"{ADVICE.format('state_codec = ')}",
    ),
    "state codec": (
        lambda t: _add(t, WrongCodec),
        "computation 'wrong-codec': state_codec must be a millwheel.Codec(encode, decode, new), not <class 'str'>",
    ),
    "nothing": (
        lambda t: None,
        "topology 't': it has neither computations nor sources: add(...) one, or declare a source(...)",
    ),
    # Names.
    "topology name": (
        lambda t: setattr(t, "name", "My Topology"),
        "topology 'My Topology': a name is 1 to 63 of a-z, 0-9 and -, beginning with a letter",
    ),
    "computation name": (
        lambda t: _add(t, name="Counter_1"),
        "computation 'Counter_1': a name is 1 to 63 of a-z, 0-9 and -, beginning with a letter: give it another one "
        "with name=",
    ),
    "long name": (
        lambda t: _add(t, name="a" * 64),
        f"computation '{'a' * 64}': a name is 1 to 63 of a-z, 0-9 and -, beginning with a letter: give it another one "
        "with name=",
    ),
    "no name": (lambda t: _add(t, name=3), "computation 'counter': name= must be a str, not 3"),
    "same name": (
        lambda t: [_add(t), _add(t)],
        f"computation 'counter': 2 computations have this name ({__name__}:Counter, {__name__}:Counter): give them "
        "others with name=",
    ),
    "stream name": (
        lambda t: t.source("Queries!", Query),
        "stream 'Queries!': a stream's name is 1 to 128 of a-z, 0-9, _, . and -, beginning with a letter",
    ),
    "stream number": (
        lambda t: t.source(3, Query),  # type: ignore[call-overload]
        "stream 3: a stream's name is 1 to 128 of a-z, 0-9, _, . and -, beginning with a letter",
    ),
    # Inputs and outputs.
    "no inputs": (
        lambda t: t.add(Counter, inputs={}),
        "computation 'counter': it has no inputs, so nothing would ever call it: give it some, such as "
        "inputs={'stream': millwheel.key('field')}",
    ),
    "inputs list": (
        lambda t: _add(t, inputs=["queries"]),
        "computation 'counter': inputs= takes a mapping from streams to keys, such as "
        "inputs={'stream': millwheel.key('field')}, not ['queries']",
    ),
    "input name": (
        lambda t: _add(t, inputs={3: TEXT}),
        "computation 'counter': inputs= takes a mapping from streams to keys, such as "
        "inputs={'stream': millwheel.key('field')}: 3 is no name",
    ),
    "key text": (
        lambda t: _add(t, inputs={"queries": "text"}),
        "computation 'counter', input 'queries': it is keyed by 'text', which is no key: write millwheel.key('text')",
    ),
    "key function": (
        lambda t: _add(t, inputs={"queries": mw.everything}),
        "computation 'counter', input 'queries': it is keyed by everything, which is no key: write "
        "millwheel.key(everything)",
    ),
    "key nothing": (
        lambda t: _add(t, inputs={"queries": None}),
        "computation 'counter', input 'queries': it is keyed by None, which is no key",
    ),
    "outputs text": (
        lambda t: _add(t, outputs="windows"),
        "computation 'counter': outputs= takes a list of streams, or a mapping to their types, not 'windows': write "
        "outputs=['windows']",
    ),
    "output name": (
        lambda t: _add(t, outputs=[3]),
        "computation 'counter': outputs= takes a list of streams, or a mapping to their types: 3 is no name",
    ),
    "output twice": (
        lambda t: _add(t, outputs=["a", "a"]),
        "computation 'counter', output 'a': it is listed twice",
    ),
    # Streams.
    "unknown stream": (
        lambda t: _add(t, inputs={"querys": TEXT}),
        "stream 'querys': is consumed by 'counter', but nothing here produces it (did you mean 'queries'?): declare it "
        "with source(...) if injectors feed it, or with external(...) if another topology produces it",
    ),
    "declared, not produced": (
        lambda t: [t.stream("counts", Count), t.add(Printer, inputs={"counts": TEXT})],
        "stream 'counts': is consumed by 'printer', but nothing here produces it: declare it "
        "with source(...) if injectors feed it, or with external(...) if another topology produces it",
    ),
    "declared, not used": (
        lambda t: [_add(t, outputs=["windows"]), t.stream("window", Count)],
        "stream 'window': is declared, but no computation here produces or consumes it (did you mean 'windows'?)",
    ),
    "external, not used": (
        lambda t: t.external("other/theirs", Count),
        "stream 'other/theirs': is declared, but no computation here consumes it",
    ),
    "external, without its topology": (
        lambda t: [t.external("theirs", Count), t.add(Printer, inputs={"theirs": TEXT})],
        "stream 'theirs': external() takes the full name of another topology's stream: 'TOPOLOGY/theirs'",
    ),
    "external, with three names": (
        lambda t: [t.external("a/b/c", Count), t.add(Printer, inputs={"a/b/c": TEXT})],
        "stream 'a/b/c': a stream's name is 1 to 128 of a-z, 0-9, _, . and -, beginning with a letter",
    ),
    "external, of this topology": (
        lambda t: [t.external("t/counts", Count), t.add(Printer, inputs={"t/counts": TEXT})],
        "stream 't/counts': belongs to this topology, which calls it by its short name: 'counts'",
    ),
    "another topology's, not declared": (
        lambda t: t.add(Printer, inputs={"other/theirs": TEXT}),
        "stream 'other/theirs': belongs to topology 'other': declare it with external('other/theirs', Type) to read it "
        "here",
    ),
    "another topology's, written": (
        lambda t: _add(t, outputs=["other/theirs"]),
        "stream 'other/theirs': belongs to topology 'other', which alone writes it, and 'counter' would: write a "
        "stream of this topology. 'other' can read it by external('t/NAME', ...)",
    ),
    "another topology's, injected": (
        lambda t: [t.source("other/theirs", Count), t.add(Printer, inputs={"other/theirs": TEXT})],
        "stream 'other/theirs': a stream's name is 1 to 128 of a-z, 0-9, _, . and -, beginning with a letter",
    ),
    "two types": (
        lambda t: [t.source("s", Query), t.source("s", Count)],
        "stream 's': has two types: Query by source(), and Count by source(): a stream has one type",
    ),
    "two types by outputs": (
        lambda t: [
            _add(t, outputs={"counts": Count}),
            _add(t, name="other", outputs={"counts": Query}),
        ],
        "stream 'counts': has two types: Count by outputs= of computation 'counter', and Query by outputs= of "
        "computation 'other': a stream has one type",
    ),
    "declared twice": (
        lambda t: [t.source("s", Query), t.external("s", Query), t.add(Counter, inputs={"s": TEXT})],
        "stream 's': declared twice, by source() and external(): keep one of them",
    ),
    "declared twice alike": (
        lambda t: [t.source("s", Query), t.source("s", Query, id_slack=mw.hours(3))],
        "stream 's': declared twice, by source() and source(): keep one of them",
    ),
    "wrong type": (
        lambda t: [_add(t, outputs={"counts": Query}), t.add(Printer, inputs={"counts": TEXT})],
        "computation 'printer', input 'counts': it takes Count, but the stream carries Query (outputs= of computation "
        "'counter')",
    ),
    "consumers differ": (
        lambda t: [
            _add(t, outputs=["counts"]),
            t.add(Printer, inputs={"counts": TEXT}),
            t.add(Counter, name="again", inputs={"counts": TEXT}),
        ],
        "computation 'again', input 'counts': it takes Query, but the stream carries Count (taken so by computation "
        "'printer')",
    ),
    "type unknown": (
        lambda t: [_add(t, outputs=["a", "b"]), t.add(Both, inputs={"a": TEXT, "b": TEXT})],
        "stream 'a': its type is not known: declare it with stream(name, Type), or outputs={name: Type}\n"
        "stream 'b': its type is not known: declare it with stream(name, Type), or outputs={name: Type}",
    ),
    "type not encodable": (
        lambda t: t.source("s", list[Opaque]),
        "stream 's': list[Opaque] cannot be encoded: Opaque (at `$[]`) is no type known; " + ADVICE.format("codec="),
    ),
    "codec": (
        lambda t: t.source("s", Query, codec=str),  # type: ignore[call-overload]
        "stream 's': codec= takes a millwheel.Codec(encode, decode), not <class 'str'>",
    ),
    "dead letters declared": (
        lambda t: t.source("dead-letters", Query),
        "stream 'dead-letters': is written by the system alone: consume it, but leave it out of the declarations",
    ),
    "dead letters produced": (
        lambda t: _add(t, outputs=["dead-letters"]),
        "stream 'dead-letters': is written by the system alone: consume it, but leave it out of the declarations",
    ),
    "no dead letters": (
        lambda t: t.add(Counter, inputs={"dead-letters": TEXT}),
        "stream 'dead-letters': nothing writes dead letters: no computation has on_failure=dead_letter()",
    ),
    # Keys.
    "key field": (
        lambda t: _add(t, inputs={"queries": mw.key("txt")}),
        "computation 'counter', input 'queries': key('txt'): Query has no field 'txt' (its fields are text, "
        "weight, fast)",
    ),
    "key of a float": (
        lambda t: _add(t, inputs={"queries": mw.key("text", "weight")}),
        "computation 'counter', input 'queries': key('text', 'weight'): the field 'weight' is float, and a key is made "
        "of str and int only",
    ),
    "key of a bool": (
        lambda t: _add(t, inputs={"queries": mw.key("fast")}),
        "computation 'counter', input 'queries': key('fast'): the field 'fast' is bool, and a key is made of str "
        "and int "
        "only",
    ),
    "key below a text": (
        lambda t: _add(t, inputs={"queries": mw.key("text.length")}),
        "computation 'counter', input 'queries': key('text.length'): str has no field 'length' (it has no fields)",
    ),
    # Options.
    "late": (
        lambda t: _add(t, late="drop"),
        "computation 'counter': late= takes Late.PROCESS, Late.DROP or divert(stream), not 'drop'",
    ),
    "late of weak productions": (
        lambda t: _add(t, late=mw.Late.DROP, strong=False),
        "computation 'counter': late=Late.DROP needs strong productions: those of a record that was on time may have "
        "been sent before a restart, after which the record is late and has the other effect too: leave out "
        "strong=False or late=",
    ),
    "divert of weak productions": (
        lambda t: _add(t, outputs={"late": Query}, late=mw.divert("late"), strong=False),
        "computation 'counter': late=divert('late') needs strong productions: those of a record that was on time may "
        "have been sent before a restart, after which the record is late and has the other effect too: leave out "
        "strong=False or late=",
    ),
    "divert nowhere": (
        lambda t: _add(t, outputs=["late"], late=mw.divert("lates")),
        "computation 'counter': late=divert('lates') names none of its outputs (did you mean 'late'?): add it to "
        "outputs=",
    ),
    "divert type": (
        lambda t: _add(t, outputs={"late": Count}, late=mw.divert("late")),
        "computation 'counter', input 'queries': late=divert('late') sends it Query, but stream 'late' carries Count",
    ),
    "on_failure": (
        lambda t: _add(t, on_failure=mw.stop),
        "computation 'counter': on_failure= takes retry(...), dead_letter(...) or stop(...), not stop",
    ),
    "after": (
        lambda t: _add(t, on_failure=mw.dead_letter(after=0)),
        "computation 'counter': dead_letter(after=...) must be 1 or more attempts, not 0",
    ),
    "initial": (
        lambda t: _add(t, on_failure=mw.retry(initial=mw.seconds(0))),
        "computation 'counter': retry(initial=...) must be a positive duration such as millwheel.seconds(1), not 0",
    ),
    "maximum": (
        lambda t: _add(t, on_failure=mw.stop(initial=mw.seconds(2), maximum=mw.seconds(1))),
        "computation 'counter': stop(): maximum=1000000 is less than initial=2000000",
    ),
    "exactly_once": (
        lambda t: _add(t, exactly_once="yes"),
        "computation 'counter': exactly_once= must be True or False, not 'yes'",
    ),
    "strong": (lambda t: _add(t, strong=1), "computation 'counter': strong= must be True or False, not 1"),
    "straggler_delay": (
        lambda t: _add(t, straggler_delay=0.5),
        "computation 'counter': straggler_delay must be a positive duration such as millwheel.seconds(1), not 0.5",
    ),
    "nanoseconds": (
        lambda t: _add(t, straggler_delay=10**18),
        "computation 'counter': straggler_delay is 1000000000000000000 microseconds, more than a year: use "
        "millwheel.seconds(...) and its like",
    ),
    "id_slack": (
        lambda t: t.source("s", Query, id_slack=mw.seconds(-1)),
        "stream 's': id_slack must be a duration of 0 or more such as millwheel.seconds(1), not -1000000",
    ),
    "allowed_skew": (
        lambda t: t.source("s", Query, allowed_skew=mw.seconds(0)),
        "stream 's': allowed_skew must be a positive duration such as millwheel.seconds(1), not 0",
    ),
    "injectors text": (
        lambda t: t.source("s", Query, injectors="one"),
        "stream 's': injectors= takes a list of names, not 'one'",
    ),
    "injector name": (
        lambda t: t.source("s", Query, injectors=["a b"]),
        "stream 's': injectors= names 'a b': an injector process's name is 1 to 128 of a-z, 0-9, _, . and -",
    ),
    "injector twice": (
        lambda t: t.source("s", Query, injectors=["a", "a"]),
        "stream 's': injectors= names a process twice",
    ),
    "retention": (
        lambda t: t.source("s", Query, retention=mw.hours(1)),  # type: ignore[call-overload]
        "stream 's': retention= takes millwheel.Retention(age=..., bytes=...), not 3600000000",
    ),
    "empty retention": (
        lambda t: t.source("s", Query, retention=mw.Retention()),
        "stream 's': Retention() bounds nothing: give it age=, bytes= or both",
    ),
    "retention age": (
        lambda t: t.source("s", Query, retention=mw.Retention(age=mw.seconds(0))),
        "stream 's': Retention(age=...) must be a positive duration such as millwheel.seconds(1), not 0",
    ),
    "retention bytes": (
        lambda t: t.source("s", Query, retention=mw.Retention(bytes=0)),
        "stream 's': Retention(bytes=...) must be a positive number of bytes, not 0",
    ),
    "large retention": (
        lambda t: t.source("s", Query, retention=mw.Retention(bytes=1 << 40)),
        "stream 's': Retention(bytes=...) is at most 12,884,901,888, not 1,099,511,627,776: a log keeps no more",
    ),
    # The graph.
    "self cycle": (
        lambda t: _add(t, inputs={"queries": TEXT, "again": TEXT}, outputs={"again": Query}),
        "computation 'counter': is in a cycle, in which its low watermark would wait for itself: "
        "counter -[again]-> counter: declare the edge that closes it, such as 'again' of 'counter', by "
        "millwheel.key(..., feedback=True)",
    ),
    "long cycle": (
        lambda t: [
            _add(t, name="a", inputs={"queries": TEXT, "back": TEXT}, outputs=["x"]),
            t.add(Counter, name="b", inputs={"x": TEXT}, outputs=["y"]),
            t.add(Counter, name="c", inputs={"y": TEXT}, outputs=["back"]),
        ],
        "computation 'a': is in a cycle, in which its low watermark would wait for itself: "
        "a -[x]-> b -[y]-> c -[back]-> a: declare the edge that closes it, such as 'back' of 'a', by "
        "millwheel.key(..., feedback=True)",
    ),
    "feedback without cycle": (
        lambda t: _add(t, inputs={"queries": mw.key("text", feedback=True)}),
        "computation 'counter', input 'queries': is declared feedback=True, but closes no cycle, and its records would "
        "be missing from the low watermark: remove feedback=True",
    ),
    "weak feedback": (
        lambda t: _add(
            t, inputs={"queries": TEXT, "again": mw.key("text", feedback=True)}, outputs=["again"], strong=False
        ),
        "computation 'counter', input 'again': is a feedback edge, and those are always strong: remove "
        "strong=False from "
        "'counter'",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_has_its_place_cause_and_remedy(mistake: str) -> None:
    make, expected = MISTAKES[mistake]
    topology = mw.Topology("t")
    make(topology)
    if mistake != "nothing" and any(
        "neither computations nor sources" in problem.message for problem in topology.validate()
    ):
        _add(topology)
    assert "\n".join(str(problem) for problem in topology.validate()) == expected


def test_add_and_source_raise_nothing_check_raises_all_at_once() -> None:
    topology = mw.Topology("Wrong")
    topology.add(Hookless, inputs={"nowhere": TEXT}, late=mw.divert("gone"))
    topology.add(Printer, name="P", inputs=[], outputs="x")  # type: ignore[arg-type]
    with pytest.raises(mw.TopologyError) as raised:
        topology.check()
    assert raised.value.problems == tuple(topology.validate())
    assert str(raised.value) == (
        "topology 'Wrong' has 7 problems:\n"
        "  topology 'Wrong': a name is 1 to 63 of a-z, 0-9 and -, beginning with a letter\n"
        "  computation 'P': a name is 1 to 63 of a-z, 0-9 and -, beginning with a letter: give it another one "
        "with name=\n"
        "  computation 'hookless': Hookless does not define process_record, without which it cannot run\n"
        "  computation 'P': inputs= takes a mapping from streams to keys, such as "
        "inputs={'stream': millwheel.key('field')}, not []\n"
        "  computation 'P': outputs= takes a list of streams, or a mapping to their types, not 'x': write "
        "outputs=['x']\n"
        "  stream 'nowhere': is consumed by 'hookless', but nothing here produces it: declare it with source(...) if "
        "injectors feed it, or with external(...) if another topology produces it\n"
        "  computation 'hookless': late=divert('gone') names none of its outputs: add it to outputs="
    )


def test_one_problem_is_counted_in_the_singular() -> None:
    with pytest.raises(mw.TopologyError, match=r"^topology 't' has 1 problem:\n"):
        mw.Topology("t").check()


def test_specs_and_plans_of_wrong_topologies_are_refused() -> None:
    topology = mw.Topology("T")
    for ask in (topology.to_spec, topology.plan):
        with pytest.raises(mw.TopologyError):
            ask()
