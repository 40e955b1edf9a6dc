"""Key extraction (section 4.2): types of keys, compound keys, and the texts of errors."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.model.limits import MAX_KEY_BYTES
from millwheel.rpc.v1 import topology_pb2
from millwheel.sdk.errors import KeyExtractionError, TooLargeError, UsageError
from millwheel.sdk.function_code import code_digest
from millwheel.sdk.keys import join_key, key, mapping_extractor, split_key


class User(msgspec.Struct):
    id: int
    name: str | None = None


class Query(msgspec.Struct):
    text: str
    user: User
    weight: float = 1.0
    fast: bool = False
    tags: dict[str, str] = {}

    @property
    def first_word(self) -> str:
        return self.text.split()[0]


class Renamed(msgspec.Struct, rename="camel"):
    user_id: str
    cell_line: User


class Pair(NamedTuple):
    left: str
    right: int


@dataclass
class Point:
    x: int


class Typed(TypedDict):
    name: str


class Color(enum.StrEnum):
    RED = "red"


QUERY = Query("a b", User(7, "ann"), tags={"lang": "en"})


@pytest.mark.paper(section="4.2")
@pytest.mark.parametrize(
    ("extractor", "value", "expected"),
    [
        (key("text"), QUERY, b"a b"),
        (key("user.id"), QUERY, b"7"),
        (key("user.name"), QUERY, b"ann"),
        (key("tags.lang"), QUERY, b"en"),
        (key("text", "user.id"), QUERY, b"a b|7"),
        (key("first_word"), QUERY, b"a"),
        (key(lambda query: query.text.upper()), QUERY, b"A B"),
        (key(lambda query: -query.user.id), QUERY, b"-7"),
        (key("x"), Point(3), b"3"),
        (key("name"), Typed(name="é"), "é".encode()),
        (key("a.b"), {"a": {"b": 1}}, b"1"),
        (key("left", "right"), Pair("a|b", 2), b"a\\|b|2"),
        (key("key.function"), topology_pb2.InputSpec(key=topology_pb2.KeySpec(function="f")), b"f"),
        (key(lambda _: Color.RED), QUERY, b"red"),
        (key("name"), Typed(name=""), b""),
    ],
)
def test_keys_are_the_text_of_str_and_int_fields(extractor: Any, value: Any, expected: bytes) -> None:
    assert extractor.extract(value) == expected


@pytest.mark.paper(section="4.2")
@pytest.mark.parametrize(
    ("extractor", "value", "message"),
    [
        (
            key("weight"),
            QUERY,
            "stream 'queries', keyed for computation 'counter' by key('weight'): no key in a value of Query: "
            "got float (1.0), and a key is made of str and int only",
        ),
        (
            key("fast"),
            QUERY,
            "stream 'queries', keyed for computation 'counter' by key('fast'): no key in a value of Query: "
            "got bool (False), and a key is made of str and int only",
        ),
        (
            key("user.name"),
            Query("a", User(1)),
            "stream 'queries', keyed for computation 'counter' by key('user.name'): no key in a value of Query: "
            "got None (None), and a key is made of str and int only",
        ),
        (
            key("nope"),
            {"a": 1},
            "stream 'queries', keyed for computation 'counter' by key('nope'): no key in a value of dict: "
            "KeyError: 'nope'",
        ),
        (
            key("text"),
            Point(1),
            "stream 'queries', keyed for computation 'counter' by key('text'): no key in a value of Point: "
            "AttributeError: 'Point' object has no attribute 'text'",
        ),
        (
            key("text", "weight"),
            QUERY,
            "stream 'queries', keyed for computation 'counter' by key('text', 'weight'): no key in a value of Query: "
            "got float (1.0), and a key is made of str and int only",
        ),
    ],
)
def test_extraction_errors_name_stream_consumer_field_and_type(extractor: Any, value: Any, message: str) -> None:
    with pytest.raises(KeyExtractionError) as raised:
        extractor.bind(type(value), "queries", "counter")(value)
    assert str(raised.value) == message


def test_text_without_utf8_is_no_key() -> None:
    with pytest.raises(KeyExtractionError, match="surrogates not allowed"):
        key("name").extract({"name": "\ud800"})


def test_keys_are_bounded_in_bytes_and_not_in_characters() -> None:
    bind = key("name").bind(Typed, "s", "c")
    assert len(bind({"name": "é" * (MAX_KEY_BYTES // 2)})) == MAX_KEY_BYTES
    with pytest.raises(TooLargeError, match=r"a key of stream 's', keyed .* has 4,097 bytes, more than .* 4,096"):
        bind({"name": "é" * (MAX_KEY_BYTES // 2) + "a"})


def test_the_compound_form_is_stable_because_keys_are_stored() -> None:
    assert join_key("de", 13) == "de|13"
    assert join_key("a|b", "c\\d", "") == "a\\|b|c\\\\d|"
    assert split_key("a\\|b|c\\\\d|") == ("a|b", "c\\d", "")
    assert split_key("") == ("",)


@pytest.mark.parametrize("text", ["a\\", "a\\b", "\\"])
def test_what_join_key_never_makes_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no compound key"):
        split_key(text)


_PART = st.text(alphabet=st.sampled_from("|\\ab") | st.characters(codec="utf-8"), max_size=6)


@given(st.lists(_PART, min_size=1, max_size=4))
def test_compound_keys_can_be_taken_apart_again(parts: list[str]) -> None:
    assert split_key(join_key(*parts)) == tuple(parts)


@pytest.mark.paper(section="4.2")
@given(st.lists(_PART, min_size=1, max_size=4), st.lists(_PART, min_size=1, max_size=4))
def test_different_parts_never_make_the_same_key(one: list[str], other: list[str]) -> None:
    assert (join_key(*one) == join_key(*other)) == (one == other)


@given(st.text(alphabet="|\\a", max_size=8))
def test_every_text_is_a_compound_key_or_refused(text: str) -> None:
    try:
        parts = split_key(text)
    except UsageError:
        return
    assert join_key(*parts) == text


@given(st.dictionaries(st.sampled_from(["a", "b"]), _PART | st.integers(), min_size=2))
def test_injectors_without_code_extract_the_same_keys_as_code(fields: dict[str, Any]) -> None:
    @dataclass
    class Value:
        a: Any
        b: Any

    extractor = key("b", "a")
    spec = extractor.to_proto(Value)
    assert mapping_extractor(list(spec.fields))(fields) == extractor.bind(Value)(Value(**fields))


def test_specs_name_fields_as_they_are_encoded() -> None:
    value = Renamed("u", User(3))
    extractor = key("user_id", "cell_line.id")
    spec = extractor.to_proto(Renamed)
    assert list(spec.fields) == ["userId", "cellLine.id"]
    assert not spec.function
    by_spec = mapping_extractor(list(spec.fields))
    assert by_spec(msgspec.to_builtins(value)) == by_spec(value) == extractor.bind(Renamed)(value) == b"u|3"


def test_extractors_that_need_user_code_are_functions() -> None:
    assert key("first_word").to_proto(Query).function == "Query: first_word"
    assert key(str.lower).to_proto(str).function == "builtins:str.lower"
    assert key(_by_text).to_proto(Query) == topology_pb2.KeySpec(
        function=f"{__name__}:_by_text", code=code_digest([_by_text])
    )


def _by_text(query: Query) -> str:
    return query.text


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((), "key() takes one or more field names, or a function"),
        (("a b",), "key() takes field names such as 'text' or 'user.id', or one function, not 'a b'"),
        (("a..b",), "key() takes field names such as 'text' or 'user.id', or one function, not 'a..b'"),
        ((3,), "key() takes field names such as 'text' or 'user.id', or one function, not 3"),
        (("a", len), f"key() takes field names such as 'text' or 'user.id', or one function, not {len!r}"),
    ],
)
def test_key_refuses_what_is_no_extractor(parts: tuple[Any, ...], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        key(*parts)
    assert str(raised.value) == message
