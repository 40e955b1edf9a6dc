"""Growing states as users write them: their content, their storage, and what is refused (section 4.4)."""

# ruff: noqa: RUF012  # defaults of states are copied

from __future__ import annotations

import doctest
import enum
import re
import uuid
from collections.abc import Callable
from itertools import count
from types import ModuleType, new_class
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.master.migrating import state_problem
from millwheel.sdk.errors import UnsupportedTypeError
from millwheel.sdk.growing import collections, expiring, fields
from millwheel.sdk.growing.codec import any_state_codec, reset, sizes
from millwheel.sdk.growing.pages import ReadPages
from tests.sdk.growing.pages import pages_of


class Payment(msgspec.Struct):
    amount: int
    to: str = ""


MISTYPED: Any = "1"


class Place(NamedTuple):
    x: int
    y: int


class Colour(enum.Enum):
    RED = "red"


class Account(mw.GrowingState):
    balance: int = 0
    tags: list[str] = []
    note: str | None
    payments: mw.ListState[Payment]
    limits: mw.MapState[str, int]
    seen: mw.SetState[Place]
    by_time: mw.OrderedState[bytes]
    counts: mw.CounterState[str]


class Savings(Account):
    rate: float = 0.5
    interest: mw.ListState[float]


CODEC = any_state_codec(Account, "computation 'accounts'")


def stored(state: Any) -> Any:
    """A state as it comes back; its pages stay."""
    back = CODEC.decode(CODEC.verify(state))
    pages_of(back).changed = pages_of(state).changed
    return back


@pytest.mark.parametrize("module", [collections, expiring, fields], ids=lambda module: module.__name__)
def test_the_examples_run(module: ModuleType) -> None:
    assert doctest.testmod(module).failed == 0
    assert doctest.testmod(module).attempted > 0


def test_every_field_begins_with_its_default() -> None:
    state = Savings()
    assert (state.balance, state.tags, state.note, state.rate) == (0, [], None, 0.5)
    assert [len(one) for one in (state.payments, state.limits, state.seen, state.by_time, state.interest)] == [0] * 5
    state.tags.append("x")
    assert Savings().tags == []
    assert CODEC.encode(Account()) == b"", "a key whose state is the default has none"


def test_all_fields_come_back() -> None:
    state = Account()
    state.balance, state.tags, state.note = 3, ["a"], "n"
    state.payments.extend(Payment(number, "x" * 50) for number in range(500))
    state.limits.update({f"{number}": number for number in range(500)})
    state.seen |= {Place(number, -number) for number in range(500)}
    for number in range(500):
        state.by_time.add(mw.Timestamp(number % 7), bytes(number % 5))
        state.counts.add(f"{number % 90}")
    back = stored(state)
    assert (back.balance, back.tags, back.note) == (3, ["a"], "n")
    assert list(back.payments) == [Payment(number, "x" * 50) for number in range(500)]
    assert back.payments[7] == back.payments[7:8][0] == back.payments[-493] == Payment(7, "x" * 50)
    assert back.payments[490:480:-5] == [Payment(490, "x" * 50), Payment(485, "x" * 50)]
    assert back.payments[5:5] == back.payments[9:2] == []
    assert dict(back.limits) == {f"{number}": number for number in range(500)}
    assert set(back.seen) == {Place(number, -number) for number in range(500)}
    assert [at for at, _ in back.by_time] == sorted(number % 7 for number in range(500))
    assert [at for at, _ in reversed(back.by_time)] == sorted((number % 7 for number in range(500)), reverse=True)
    assert sum(back.counts.values()) == 500
    assert sizes(back)["payments"] == {"elements": 500, "page_levels": 1}
    shown = msgspec.msgpack.decode(CODEC.present(CODEC.encode(state)))
    assert (shown["balance"], shown["tags"], shown["limits"]["elements"]) == (3, ["a"], 500)
    assert "payments=ListState(Payment(amount=0, to='xxx" in repr(back)
    assert repr(back.payments).endswith(", …)")


def test_an_emptied_state_is_stored_until_its_pages_are_gone() -> None:
    nodes: dict[int, bytes] = {}

    def commit(state: Account) -> Account:
        for number, node in pages_of(state).changed.items():
            if node is None:
                del nodes[number]
            else:
                nodes[number] = node.encode()
        encoded = CODEC.encode(state)
        state = CODEC.decode(encoded) if encoded else Account()
        pages_of(state).source = ReadPages(nodes.__getitem__)
        return state

    state = Account()
    state.balance = 5
    state.payments.extend(Payment(number, "x" * 500) for number in range(10_000))
    state = commit(state)
    assert len(nodes) > 1_000
    reset(state)
    assert (state.balance, len(state.payments)) == (0, 0)
    rounds = 0
    while pages_of(state := commit(state)).garbage:
        pages_of(state).collect(50)
        rounds += 1
    assert (len(nodes), CODEC.encode(state)) == (0, b"")
    assert 2 < rounds < 20


MADE = count()


class Numbered(msgspec.Struct):
    number: int = msgspec.field(default_factory=lambda: next(MADE))


class WithNumber(mw.GrowingState):
    made: Numbered
    items: mw.ListState[bytes]


@pytest.mark.parametrize("size", [0, 1, 300])
def test_a_deleted_state_is_none_though_its_default_varies(size: int) -> None:
    codec, nodes = any_state_codec(WithNumber, "computation 'c'"), dict[int, bytes]()

    def commit(state: Any) -> bytes:
        for number, node in pages_of(state).changed.items():
            nodes.pop(number, None)
            if node is not None:
                nodes[number] = node.encode()
        return codec.verify(state)

    def opened(encoded: bytes) -> Any:
        state = codec.decode(encoded)
        pages_of(state).source = ReadPages(nodes.__getitem__)
        return state

    state = WithNumber()
    state.items.extend([bytes(2_000)] * size)
    state = opened(commit(state))
    reset(state)
    encoded = commit(state)
    assert bool(encoded) is (size == 300), "it is stored as long as it has pages to delete"
    while encoded:
        assert codec.present(encoded) == b""
        state = opened(encoded)
        pages_of(state).collect(50)
        encoded = commit(state)
    assert nodes == {}
    number = state.made.number
    for changed in (-1, number):
        state.made.number = changed
        encoded = commit(state)
        assert opened(encoded).made.number == changed, "what is set after the deletion is stored"


@pytest.mark.parametrize("change", ["element", "plain"])
def test_a_deleted_state_that_changes_again_is_kept(change: str) -> None:
    codec = any_state_codec(WithNumber, "computation 'c'")
    state = WithNumber()
    state.items.extend([bytes(2_000)] * 300)
    back = codec.decode(codec.verify(state))
    reset(back)
    back = codec.decode(codec.verify(back))
    if change == "element":
        back.items.append(b"x")
    else:
        back.made.number = -1
    number = back.made.number
    encoded = codec.verify(back)
    back = codec.decode(encoded)
    assert (back.made.number, list(back.items)) == (number, [b"x"] * (change == "element"))
    assert codec.present(encoded) != b""


NUMBERS = st.integers(-3, 30)


@given(
    st.lists(st.tuples(st.sampled_from(["append", "ring", "pop", "popleft", "set", "get", "slice"]), NUMBERS, NUMBERS))
)
def test_a_list_is_like_pythons(steps: list[tuple[str, int, int]]) -> None:
    class Numbers(mw.GrowingState):
        items: mw.ListState[int]

    mine = Numbers().items
    model: list[int] = []
    for what, one, other in steps:
        if what == "ring":
            mine.append(other, keep=abs(one) + 1)
            model.append(other)
            del model[: -abs(one) - 1]
        else:
            assert outcome(what, mine, one, other) == outcome(what, model, one, other)
        assert list(mine) == model
        assert list(reversed(mine)) == model[::-1]
        assert len(mine) == len(model)


def outcome(what: str, numbers: Any, one: int, other: int) -> Any:
    """What a step returns."""
    try:
        if what == "append":
            return numbers.append(one)
        if what == "pop":
            return numbers.pop()
        if what == "popleft":
            return numbers.pop(0) if isinstance(numbers, list) else numbers.popleft()
        if what == "set":
            numbers[one] = other
        return numbers[one] if what == "get" else numbers[one:other]
    except IndexError:
        return IndexError


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5))))
def test_a_set_and_a_map_are_like_pythons(steps: list[tuple[bool, int]]) -> None:
    state = Account()
    places: set[Place] = set()
    limits: dict[str, int] = {}
    for add, number in steps:
        if add:
            state.seen.add(Place(number, 0))
            places.add(Place(number, 0))
            state.limits[str(number)] = limits[str(number)] = len(limits)
        else:
            state.seen.discard(Place(number, 0))
            places.discard(Place(number, 0))
            assert state.limits.pop(str(number), None) == limits.pop(str(number), None)
        assert set(state.seen) == places
        assert state.seen & {Place(1, 0)} == places & {Place(1, 0)}
        assert state.limits == limits
        assert state.limits.get("3") == limits.get("3")
        assert (Place(2, 0) in state.seen) is (Place(2, 0) in places)


def test_missing_keys_and_elements_are_pythons_errors() -> None:
    state = Account()
    for wrong in (
        lambda: state.limits["x"],
        lambda: state.limits.__delitem__("x"),
        lambda: state.seen.remove(Place(1, 2)),
    ):
        with pytest.raises(KeyError):
            wrong()
    for wrong in (lambda: state.payments.pop(), lambda: state.payments.popleft(), lambda: state.payments[0]):  # type: ignore[assignment]
        with pytest.raises(IndexError):
            wrong()
    assert (state.by_time.first(), state.by_time.last(), state.by_time.pop_until(mw.Timestamp(5))) == (None, None, [])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda state: state.payments.append("x"), "Account.payments carries Payment, not str: 'x'"),
        (lambda state: state.payments.append(Payment(MISTYPED)), "would be read|could not be read again as Payment"),
        (lambda state: state.limits.update({"a": "b"}), "Account.limits carries int, not str: 'b'"),
        (lambda state: state.limits.update({1: 1}), "Account.limits, key carries str, not int: 1"),
        (lambda state: state.limits.get(None), "Account.limits, key carries str, not None: None"),
        (lambda state: state.payments.append(Payment(1), keep=0), "append(keep=…) is a number of elements"),
        (lambda state: state.by_time.add(1.5, b""), "add takes a Timestamp (integer microseconds), not float: 1.5"),
        (lambda state: state.by_time.add(1, b"x" * (5 << 20)), "Account.by_time has 5,242,880 bytes, more"),
        (lambda state: state.limits.update({"x" * 5_000: 1}), "Account.limits, key has 5,003 bytes, more"),
        (lambda state: setattr(state, "payments", []), "field 'payments' is a collection, and was replaced by []"),
        (lambda state: setattr(state, "payments", Account().payments), "field 'payments' is a collection, and was"),
        (lambda state: setattr(state, "limits", state.counts), "field 'limits' is a collection, and was replaced"),
        (lambda state: setattr(state, "balnce", 1), "field 'balnce' of Account was deleted, or was not declared"),
        (lambda state: delattr(state, "balance"), "field 'balance' of Account was deleted, or was not declared"),
        (lambda state: setattr(state, "balance", "much"), "could not be read again as Account"),
    ],
)  # fmt: skip
def test_what_could_not_be_read_again_is_refused(wrong: Callable[[Any], Any], message: str) -> None:
    state = Account()
    with pytest.raises(mw.MillwheelError) as caught:
        CODEC.verify([wrong(state), state][1])
    assert any(part in str(caught.value) for part in message.split("|")), str(caught.value)


class Rotated(mw.GrowingState):
    now: mw.ListState[str]
    before: mw.ListState[str]


ALIASING = st.sampled_from(["append to now", "append to before", "pop", "clear", "alias", "swap", "restore", "commit"])


@given(st.lists(ALIASING, max_size=30))
def test_no_two_fields_ever_share_their_pages(steps: list[str]) -> None:
    """A commit is refused while one field has the collection of another. Otherwise they behave like Python's lists."""
    codec, nodes = any_state_codec(Rotated, "computation 'r'"), dict[int, bytes]()

    def opened(encoded: bytes) -> Any:
        state = codec.decode(encoded) if encoded else Rotated()
        pages_of(state).source = ReadPages(nodes.__getitem__)
        return state

    encoded, kept = b"", ([""] * 0, [""] * 0)
    state, model = opened(encoded), kept
    now, before = state.now, state.before
    for step in [*steps, "commit"]:
        if step.startswith("append"):
            index = step == "append to before"
            (now, before)[index].extend(["x" * 500] * 20)
            model = (model[0] + ["x" * 500] * 20 * (not index), model[1] + ["x" * 500] * 20 * index)
        elif step == "pop" and model[0]:
            now.popleft()
            model = (model[0][1:], model[1])
        elif step == "clear":
            before.clear()
            model = (model[0], [])
        elif step == "alias":
            state.before = state.now
        elif step == "swap":
            state.now, state.before = state.before, state.now
        elif step == "restore":
            state.now, state.before = now, before
        elif step == "commit":
            if state.now is now and state.before is before:
                encoded, kept = codec.verify(state), model
                nodes.update({number: node.encode() for number, node in pages_of(state).changed.items() if node})
            else:
                with pytest.raises(mw.MillwheelError, match="was replaced by another ListState"):
                    codec.verify(state)
            state, model = opened(encoded), kept
            now, before = state.now, state.before
            assert (list(now), list(before)) == model


class NoArguments(mw.GrowingState):
    items: mw.ListState  # type: ignore[type-arg]


class FloatKeys(mw.GrowingState):
    items: mw.MapState[tuple[str, float], int]


class AnyKeys(mw.GrowingState):
    items: mw.SetState[object]


class MixedKeys(mw.GrowingState):
    items: mw.SetState[int | bool]


class Default(mw.GrowingState):
    items: mw.ListState[int] = []  # type: ignore[assignment]


class Hidden(mw.GrowingState):
    _items: mw.ListState[int]


class Constructed(mw.GrowingState):
    def __init__(self, size: int) -> None:
        self.size = size


class NoElement(mw.GrowingState):
    items: mw.ListState[re.Pattern[str]]


class NoDefault(mw.GrowingState):
    payment: Payment


class Unknown(mw.GrowingState):
    payment: Nothing  # type: ignore[name-defined] # noqa: F821


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (NoArguments, "NoArguments.items: say what is in it, such as ListState[int]"),
        (FloatKeys, "FloatKeys.items: tuple[str, float] cannot be a key, because equal values of float may be stored"),
        (AnyKeys, "AnyKeys.items: Any cannot be a key, because equal values of Any may be stored"),
        (MixedKeys, "equal values of int | bool may be stored differently"),
        (Default, "Default.items: a collection begins empty, and takes no default"),
        (Hidden, "Hidden._items: a field of a state does not begin with an underscore"),
        (Constructed, "Constructed defines __init__: give its fields defaults in the class instead"),
        (NoElement, "NoElement.items: Pattern[str] cannot be encoded"),
        (NoDefault, "NoDefault: Payment.__new__() missing|NoDefault: Missing required argument 'amount'"),
        (Unknown, "the fields of Unknown cannot be read (name 'Nothing' is not defined)"),
    ],
)  # fmt: skip
def test_fields_that_cannot_be_stored_are_named(state: type, message: str) -> None:
    with pytest.raises(UnsupportedTypeError) as caught:
        any_state_codec(state, "computation 'c'")
    assert any(part in str(caught.value) for part in message.split("|")), str(caught.value)


class Keys(mw.GrowingState):
    words: mw.SetState[tuple[str, ...]]
    ids: mw.SetState[uuid.UUID]
    colours: mw.SetState[Colour | None]
    raw: mw.SetState[bytes]
    structs: mw.SetState[Place]


def test_these_types_can_be_keys() -> None:
    state = Keys()
    state.words.add(("a", "b"))
    state.ids.add(uuid.UUID(int=5))
    state.colours |= {Colour.RED, None}
    state.raw |= {b"", b"\xff"}
    assert set(state.words) | set(state.ids) == {("a", "b"), uuid.UUID(int=5)}
    assert set(state.colours) == {Colour.RED, None}
    assert set(state.raw) == {b"", b"\xff"}


# In a topology.


def topology(state: Any, **attributes: Any) -> mw.Topology:
    def process_record(self: Any, ctx: Any, record: Any) -> None:
        """Do nothing."""

    members = {"process_record": process_record, **attributes}
    made = mw.Topology("t")
    made.source("in", int)
    computation = new_class("C", (mw.Computation[int, state],), exec_body=lambda namespace: namespace.update(members))
    made.add(computation, name="c", inputs={"in": mw.key(str)})
    return made


async def waits(self: Any, ctx: Any, record: Any) -> None:
    """An async hook."""


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"process_record": waits}, "its state Account is a growing one, and waits is async: a hook that needs a page"),
        ({"state_version": 2}, "its state_version is 2, and nothing says how earlier states are read: define migrate"),
        ({"state_codec": mw.Codec(bytes, bytes)}, "a growing state has no state_codec: leave it out"),
    ],
)
def test_what_a_growing_state_cannot_have_is_named(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(mw.TopologyError, match=re.escape(message)):
        topology(Account, **attributes).check()


class Before(mw.GrowingState):
    total: int = 0
    items: mw.ListState[int]


class More(Before):
    late: bool = False
    payments: mw.MapState[str, Payment]


class OtherElements(mw.GrowingState):
    total: int = 0
    items: mw.ListState[str]


class OtherKind(mw.GrowingState):
    total: int = 0
    items: mw.SetState[int]


class Fewer(mw.GrowingState):
    total: int = 0


class Plain(msgspec.Struct):
    total: int = 0


class Structs(mw.GrowingState):
    payments: mw.MapState[str, Payment]


class LongPayment(msgspec.Struct):
    amount: int
    to: str = ""
    why: str = ""


class StrictPayment(msgspec.Struct):
    amount: int
    why: str
    to: str = ""


class LongStructs(mw.GrowingState):
    payments: mw.MapState[str, LongPayment]


class StrictStructs(mw.GrowingState):
    payments: mw.MapState[str, StrictPayment]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (Before, Before, ""),
        (Before, More, ""),
        (Structs, LongStructs, ""),
        (Structs, StrictStructs, "field 'payments[].why' is new, and has no default"),
        (Before, OtherElements, "field 'items[]' was int, and is str"),
        (Before, OtherKind, "field 'items' was growing list, and is growing set"),
        (Before, Fewer, "field 'items' is gone"),
        (Plain, Fewer, "the whole was fields, and is growing state"),
        (Plain, Before, "the whole was fields, and is growing state): no version turns a plain state into one that gr"),
        (Fewer, Plain, "the whole was growing state, and is fields): no version turns a plain state into one that gr"),
    ],
)
def test_a_new_version_reads_what_is_stored_or_is_refused(old: Any, new: Any, problem: str) -> None:
    then, now = (topology(one).to_spec().computations[0] for one in (old, new))
    found = state_problem(then, now)
    assert problem in found
    assert bool(problem) is bool(found)
    if not problem:
        state = old()
        if old is Before:
            state.items.append(5)
        else:
            state.payments["a"] = Payment(5)
        back = any_state_codec(new, "c").decode(any_state_codec(old, "c").encode(state))
        assert list(back.items) == [5] if old is Before else back.payments["a"].amount == 5


@pytest.mark.parametrize(("old", "new"), [(Plain, Fewer), (Fewer, Plain), (Before, Plain)])
def test_no_version_migrates_to_or_from_a_growing_state(old: Any, new: Any) -> None:
    """The next version of a plain state would get the head of a growing one, and its pages would stay for ever."""
    then, now = (topology(one).to_spec().computations[0] for one in (old, new))
    now.state.version = 2
    assert "no version turns a plain state into one that grows" in state_problem(then, now)
    then.state.version, now.state.version = 2, 1
    assert "no version turns a plain state into one that grows" in state_problem(then, now)


def test_a_computation_without_state_may_get_a_growing_one() -> None:
    then, now = (topology(one).to_spec().computations[0] for one in (None, Before))
    assert state_problem(then, now) == ""
