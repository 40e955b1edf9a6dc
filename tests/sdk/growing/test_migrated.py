"""Growing states outlive the versions of the code that stored them: their elements, fields and pages (section 4.4)."""

# ruff: noqa: SLF001  # it looks at pages

from __future__ import annotations

import doctest
from types import FunctionType
from typing import IO, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.master.migrating import state_problem
from millwheel.sdk.envelopes import MARK
from millwheel.sdk.errors import UnsupportedTypeError
from millwheel.sdk.growing import migrated
from millwheel.sdk.growing.codec import any_state_codec, reset, sizes
from millwheel.sdk.growing.elements import element_codec
from millwheel.sdk.growing.fields import plan_of
from millwheel.sdk.growing.migrated import Migrated, conversions_of, in_forms
from millwheel.sdk.growing.pages import ReadPages

AT = mw.Timestamp(5)


class Payment(msgspec.Struct):
    cents: int
    currency: str = "EUR"


class Wide(msgspec.Struct):
    cents: int


class Traced(msgspec.Struct):
    cents: int
    trace: str


def to_payment(euros: int) -> Payment:
    return Payment(100 * euros)


def to_traced(payment: Payment) -> Traced:
    return Traced(payment.cents + 1, payment.currency)


class First(mw.GrowingState):
    balance: int = 0
    payments: mw.ListState[int]
    limits: mw.MapState[str, int]
    ends: mw.ExpiringMapState[str, int]
    times: mw.OrderedState[int]
    rates: mw.MapState[str, bytes]


class Second(mw.GrowingState):
    euros: int = 0
    payments: mw.ListState[Payment] = mw.migrated(to_payment)
    limits: mw.MapState[str, Payment] = mw.migrated(to_payment)
    ends: mw.ExpiringMapState[str, Payment] = mw.migrated(to_payment)
    times: mw.OrderedState[Payment] = mw.migrated(to_payment)
    rates: mw.Dropped
    seen: mw.SetState[str]


class Third(mw.GrowingState):
    euros: int = 0
    payments: mw.ListState[Traced] = mw.migrated(to_payment, to_traced)
    limits: mw.MapState[str, Traced] = mw.migrated(to_payment, to_traced)
    ends: mw.ExpiringMapState[str, Traced] = mw.migrated(to_payment, to_traced)
    times: mw.OrderedState[Traced] = mw.migrated(to_payment, to_traced)
    rates: mw.Dropped
    seen: mw.SetState[str]


def to_second(stored: mw.StoredState) -> Second:
    state = Second()
    state.euros = stored.read(First).balance
    return state


def to_third(stored: mw.StoredState) -> Third:
    state = Third()
    state.euros = stored.plain()["balance"] if stored.version == 1 else stored.read(Second).euros
    return state


FIRST = any_state_codec(First, "c")
SECOND = any_state_codec(Second, "c", version=2, migrate=to_second)
THIRD = any_state_codec(Third, "c", version=3, migrate=to_third)


class Store:
    """The head and the pages of a state between versions of the code."""

    def __init__(self) -> None:
        self.head = b""
        self.pages: dict[int, bytes] = {}

    def load(self, codec: Any) -> Any:
        state = codec.decode(self.head)
        state._pages.source = ReadPages(self.pages.__getitem__)
        return state

    def save(self, codec: Any, state: Any) -> None:
        for number, node in state._pages.changed.items():
            if node is None:
                del self.pages[number]
            else:
                self.pages[number] = node.encode()
        self.head = codec.verify(state)


def filled(count: int = 2_000) -> Store:
    """What the first version stores: pages of each collection, and values with pages of their own."""
    store, state = Store(), First()
    state.balance = 7
    state.payments.extend(range(count))
    for number in range(count):
        state.limits[str(number)] = number
        state.ends.put(str(number), number, mw.Timestamp(number))
        state.times.add(mw.Timestamp(number), number)
        state.rates[str(number)] = b"r" * (1_500 if number % 400 == 0 else 10)
    store.save(FIRST, state)
    return store


def content(state: Any) -> Any:
    return (
        list(state.payments),
        dict(state.limits.items()),
        dict(state.ends.items()),
        [value for _, value in state.times],
    )


def test_the_examples_run() -> None:
    assert doctest.testmod(migrated).failed == 0
    assert doctest.testmod(migrated).attempted > 0


def test_elements_are_converted_when_read_and_stored_when_set() -> None:
    store = filled(3)
    state = store.load(SECOND)
    assert state.euros == 7
    assert content(state) == (
        [Payment(0), Payment(100), Payment(200)],
        {"0": Payment(0), "1": Payment(100), "2": Payment(200)},
        {"0": Payment(0), "1": Payment(100), "2": Payment(200)},
        [Payment(0), Payment(100), Payment(200)],
    )
    state.payments[1] = Payment(5, "GBP")
    state.limits["2"] = state.limits["2"]
    store.save(SECOND, state)
    assert store.load(SECOND).payments[:] == [Payment(0), Payment(5, "GBP"), Payment(200)]
    after = store.load(THIRD)
    assert after.euros == 7
    assert list(after.payments) == [Traced(1, "EUR"), Traced(6, "GBP"), Traced(201, "EUR")]
    assert after.limits["2"] == Traced(201, "EUR")
    assert after.ends.expire(mw.Timestamp(1)) == [("0", Traced(1, "EUR")), ("1", Traced(101, "EUR"))]
    assert after.times.pop_until(mw.Timestamp(2)) == [(0, Traced(1, "EUR")), (1, Traced(101, "EUR"))]


@pytest.mark.guarantee("G1", section="4.4")
def test_each_function_runs_once_from_the_stored_form_on() -> None:
    """One element of each form, each read twice: reading stores nothing."""
    calls: list[str] = []

    def counted(euros: int) -> Payment:
        calls.append("counted")
        return Payment(euros + 10)

    def traced(payment: Payment) -> Traced:
        calls.append("traced")
        return Traced(payment.cents, payment.currency)

    chain = [(int, (), 1), (Payment, (counted,), Payment(2)), (Traced, (counted, traced), Traced(3, ""))]
    forms = []
    for element, functions, _ in chain:
        plain = element_codec(element, "f")
        forms.append(in_forms(plain, conversions_of(Migrated(functions), element, "f"), "f"))
    stored = [form.encode(value) for form, (_, _, value) in zip(forms, chain, strict=True)]
    for _ in range(2):
        calls.clear()
        assert [forms[-1].decode(one) for one in stored] == [Traced(11, "EUR"), Traced(2, "EUR"), Traced(3, "")]
        assert calls == ["counted", "traced", "traced"]


def test_old_code_refuses_what_newer_code_has_stored() -> None:
    store = filled(3)
    state = store.load(SECOND)
    state.payments[0] = Payment(1)
    store.save(SECOND, state)
    with pytest.raises(mw.ValueDecodeError, match="its state is of version 2, and this code knows 1: run newer code"):
        store.load(FIRST)
    elements = plan_of(Third).collections["payments"].elements
    with pytest.raises(mw.ValueDecodeError, match="an element has form 2, and this code knows 1: run newer code"):
        plan_of(Second).collections["payments"].elements.decode(elements.encode(Traced(1, "")))


def to_text(data: bytes) -> str:
    return data.hex()


def longer(data: bytes) -> bytes:
    return data + b"!"


class Raw(mw.GrowingState):
    items: mw.ListState[bytes]


class LongerRaw(mw.GrowingState):
    items: mw.ListState[bytes] = mw.migrated(longer)


class Texts(mw.GrowingState):
    items: mw.ListState[str] = mw.migrated(to_text)


@given(st.binary(max_size=8) | st.binary(max_size=8).map(lambda data: MARK + data))
def test_any_bytes_are_told_from_converted_elements(data: bytes) -> None:
    first, later, texts = (plan_of(one).collections["items"].elements for one in (Raw, LongerRaw, Texts))
    assert first.decode(first.encode(data)) == data
    assert later.decode(later.encode(data)) == data
    assert later.decode(first.encode(data)) == data + b"!"
    assert texts.decode(first.encode(data)) == data.hex()


def test_states_without_functions_have_no_extra_bytes() -> None:
    elements = plan_of(First).collections["payments"].elements
    assert elements.encode(5) == msgspec.msgpack.encode(5)
    assert plan_of(Raw).collections["items"].elements.encode(b"abc") == b"abc"


def test_a_dropped_collection_is_deleted_with_its_pages() -> None:
    store = filled()
    pages = len(store.pages)
    state = store.load(SECOND)
    assert "rates" not in sizes(state)
    assert "rates" not in repr(state)
    with pytest.raises(AttributeError):
        _ = state.rates
    assert state._pages.garbage, "its pages are deleted in later commits"
    state._pages.collect(10_000)
    store.save(SECOND, state)
    assert len(store.pages) < pages
    after = store.load(THIRD)
    assert after._pages.garbage == []
    assert len(content(after)[0]) == 2_000
    after.payments.clear(), after.limits.clear(), after.ends.clear(), after.times.clear()
    after._pages.collect(10_000)
    store.save(THIRD, after)
    assert store.pages == {}, "nothing else was left of what the first version stored"


def test_small_dropped_collections_leave_no_state() -> None:
    store, state = Store(), First()
    state.rates["a"] = b"r" * 1_500
    store.save(FIRST, state)
    assert len(store.pages) == 1
    after = store.load(SECOND)
    store.save(SECOND, after)
    assert (store.head, store.pages) == (b"", {})


def test_a_deleted_state_is_not_migrated() -> None:
    store = filled()
    state = store.load(FIRST)
    reset(state)
    store.save(FIRST, state)
    assert store.head, "its pages are not all deleted yet"
    after = store.load(SECOND)
    assert (after.euros, len(after.payments)) == (0, 0)
    after._pages.collect(10_000)
    store.save(SECOND, after)
    assert (store.head, store.pages) == (b"", {})


def test_what_migrate_returns_for_a_growing_state_is_checked() -> None:
    def fill(stored: mw.StoredState) -> Second:
        state = Second()
        state.seen.add("a")
        return state

    store = filled(1)
    for migrate, message in [
        (fill, "migrate filled 'seen', and gives plain fields alone"),
        (lambda stored: stored.read(First), "migrate returned First"),
        (lambda stored: None, "migrate returned None for a state of version 1: return a Second with the plain fields"),
    ]:
        with pytest.raises(mw.ValueDecodeError, match=message):
            store.load(any_state_codec(Second, "c", version=2, migrate=migrate))


def test_programs_outside_get_plain_fields_in_their_new_form() -> None:
    shown = msgspec.msgpack.decode(SECOND.present(filled(3).head))
    assert shown["euros"] == 7
    assert shown["payments"]["elements"] == 3
    assert "rates" not in shown


def to_word(euros: int) -> str:
    return str(euros)


def untold(euros):  # type: ignore[no-untyped-def]
    return Payment(euros)


async def waiting(euros: int) -> Payment:
    return Payment(euros)


def taking_a_file(stream: IO[str]) -> Payment:
    return Payment(0)


def lying(euros: int) -> Payment:
    return "text"  # type: ignore[return-value]


def growing(**annotations: Any) -> Any:
    """A class of growing states: each field's annotation, with its default if it is a pair."""
    pairs = {name: one if isinstance(one, tuple) else (one,) for name, one in annotations.items()}
    space = {name: pair[1] for name, pair in pairs.items() if len(pair) == 2}
    return type("State", (mw.GrowingState,), space | {"__annotations__": {n: pair[0] for n, pair in pairs.items()}})


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ((mw.ListState[Payment], mw.migrated(untold)), "migrated(untold) does not say which elements it takes"),
        ((mw.ListState[Payment], mw.migrated(to_word)), "to_word returns str, and not Payment"),
        ((mw.ListState[Payment], mw.migrated(taking_a_file)), "as taking_a_file takes it: IO[str] cannot be encoded"),
        ((mw.ListState[Traced], mw.migrated(to_word, to_traced)), "to_word returns str, and not Payment"),
        ((mw.SetState[str], mw.migrated(to_word)), "migrated(...) converts no keys"),
        ((mw.CounterState[str], mw.migrated(to_word)), "migrated(...) converts no keys"),
        ((int, mw.migrated(to_word)), "migrated(...) converts elements of collections"),
        ((mw.ListState[int], []), "a collection begins empty, and takes no default but migrated(...)"),
        ((mw.Dropped, 1), "a dropped field takes no default"),
    ],
)
def test_functions_that_cannot_convert_are_refused(field: Any, message: str) -> None:
    with pytest.raises(UnsupportedTypeError) as raised:
        plan_of(growing(items=field))
    assert "State.items" in str(raised.value)
    assert message in str(raised.value)


def test_functions_need_names_and_are_not_async() -> None:
    for given_ in ((), (waiting,), (5,)):
        with pytest.raises(mw.UsageError, match=r"migrated\(\.\.\.\) takes"):
            mw.migrated(*given_)


def test_a_function_that_makes_no_element_is_named() -> None:
    state = growing(items=(mw.ListState[Payment], mw.migrated(lying)))
    elements = plan_of(state).collections["items"].elements
    with pytest.raises(mw.ValueDecodeError, match=r"State.items: lying made no element of one: .*Payment, not str"):
        elements.decode(msgspec.msgpack.encode(5))
    with pytest.raises(mw.ValueDecodeError, match="as lying takes it"):
        elements.decode(msgspec.msgpack.encode("no number"))


def by_code(euros: int) -> Payment:
    return Payment(euros, {1: "EUR"}[euros])


@pytest.mark.guarantee("G1", section="4.4")
@pytest.mark.parametrize("collection", [mw.MapState, mw.ExpiringMapState])
def test_an_element_that_a_function_fails_for_is_not_missing(collection: Any) -> None:
    """Regression: a KeyError of the function was taken for a key without an element, and `setdefault` replaced it."""
    before = growing(items=collection[str, int])
    old, store = before(), Store()
    for number in (1, 2):
        if collection is mw.MapState:
            old.items[str(number)] = number
        else:
            old.items.put(str(number), number, ends=AT)
    store.save(any_state_codec(before, "c"), old)
    after = growing(items=(collection[str, Payment], mw.migrated(by_code)))
    items = store.load(any_state_codec(after, "c")).items
    assert items.get("1") == Payment(1)
    takes = [items.get, *([items.setdefault, items.pop] if collection is mw.MapState else [])]
    for take in takes:
        with pytest.raises(mw.ValueDecodeError, match="items: by_code raised KeyError for a stored element: 2"):
            take("2", Payment(5))
    assert len(items) == 2


def spec(state: Any, version: int = 1) -> Any:
    def process_record(self: Any, ctx: Any, record: Any) -> None:
        """Nothing."""

    space = {"process_record": process_record, "__orig_bases__": (mw.Computation[str, state],)}
    if version > 1:
        space |= {"state_version": version, "migrate": lambda self, stored: state()}
    made = mw.Topology("t")
    made.source("words", str)
    made.add(type("Count", (mw.Computation,), space)(), name="count", inputs={"words": mw.key(str)})
    return made.to_spec().computations[0]


def named(name: str, function: Any) -> Any:
    """Another function of this name."""
    made = FunctionType(function.__code__, globals(), name)
    made.__annotations__ = function.__annotations__
    return made


NUMBERS, WORDS = growing(items=mw.ListState[int]), growing(items=mw.ListState[str])
AS_WORDS = growing(items=(mw.ListState[str], mw.migrated(to_word)))
TRACED = growing(items=(mw.ListState[Traced], mw.migrated(to_traced)))
OTHERWISE = growing(items=(mw.ListState[str], mw.migrated(named("to_word", to_text))))
GONE = growing(items=mw.Dropped)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (spec(First), spec(Second, 2), ""),
        (spec(First), spec(Third, 2), ""),
        (spec(Second, 2), spec(Third, 3), ""),
        (spec(Second, 2), spec(Third, 2), ""),
        (spec(First), spec(Second), "field 'balance' is gone): set state_version = 2 and define migrate"),
        (spec(Second, 2), spec(First), "field 'payments' was migrated by to_payment, and is by nothing"),
        (spec(Third, 2), spec(Second, 2), "field 'payments' was migrated by to_payment, to_traced, and is by to_pay"),
        (spec(NUMBERS), spec(AS_WORDS), ""),
        (spec(NUMBERS), spec(WORDS), "'items[]' was int, and is str: give the field the default millwheel.migrated"),
        (spec(WORDS), spec(AS_WORDS), "as to_word takes it, field 'items[]' was str, and is int: let the function ta"),
        (spec(growing(items=mw.ListState[Wide])), spec(TRACED), ""),
        (
            spec(AS_WORDS),
            spec(OTHERWISE),
            "as to_word takes it, field 'items[]' was int, and is bytes: let the function",
        ),
        (spec(AS_WORDS), spec(WORDS), "elements of all earlier versions may be stored, so keep these functions"),
        (spec(NUMBERS), spec(growing(other=mw.SetState[int])), "field 'items' is gone: keep it as a millwheel.Dropped"),
        (spec(NUMBERS), spec(GONE), ""),
        (spec(AS_WORDS), spec(GONE), ""),
        (spec(GONE), spec(NUMBERS), "field 'items' was dropped: keep it as a millwheel.Dropped, and give a new field"),
        (
            spec(GONE),
            spec(growing(other=mw.SetState[int])),
            "field 'items' was dropped: keep it as a millwheel.Dropped",
        ),
        (spec(NUMBERS), spec(growing(items=int)), "field 'items' was growing list, and is int: keep it as a millwheel"),
        (spec(growing(items=int)), spec(NUMBERS), "field 'items' is gone): set state_version = 2"),
        (spec(growing(items=int)), spec(NUMBERS, 2), ""),
        (
            spec(growing(items=mw.MapState[str, int])),
            spec(growing(items=(mw.MapState[int, str], mw.migrated(to_word)))),
            "field 'items[key]' was str, and is int: elements are found by their encoded keys, so add a field of an",
        ),
        (
            spec(growing(items=mw.SetState[str])),
            spec(growing(items=mw.SetState[int]), 2),
            "field 'items[]' was str, and is int: elements are found by their encoded keys, so add a field of another",
        ),
    ],
)
def test_an_update_reads_all_stored_pages_or_is_refused(old: Any, new: Any, problem: str) -> None:
    found = state_problem(old, new)
    assert problem in found
    assert bool(problem) is bool(found)


def test_a_step_of_the_library_does_not_ask_for_functions() -> None:
    old, new = spec(NUMBERS), spec(WORDS)
    new.implementation = "millwheel.operators.broadcast.Joining"
    found = state_problem(old, new)
    assert found.endswith("or give the step another name, to begin without state")
    assert "field 'items[]' was int, and is str" in found
    assert "migrated" not in found
