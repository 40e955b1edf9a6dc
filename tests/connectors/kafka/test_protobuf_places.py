"""The numbers before a message, byte by byte, and the messages that a text has."""

from __future__ import annotations

from base64 import b64encode
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.connectors.kafka.protobuf_places import Place, place_bytes, places_in, read_place
from tests.connectors.kafka.messages import descriptors, proto3


@pytest.mark.parametrize(
    ("place", "data"),
    [
        ((0,), "00"),
        ((1,), "02 02"),
        ((1, 0), "04 02 00"),
        ((2, 0, 1), "06 04 00 02"),
        ((0, 0), "04 00 00"),
        ((63,), "02 7e"),
        ((64,), "02 80 01"),
        ((100,), "02 c8 01"),
        ((2**31 - 1,), "02 fe ff ff ff 0f"),
    ],
)
def test_a_place_has_these_bytes(place: Place, data: str) -> None:
    """A count and the numbers, zigzag, as varints. 0 is short for the first message."""
    assert place_bytes(place) == bytes.fromhex(data)
    assert read_place(bytes.fromhex(data) + b"\x0a\x01x") == (place, len(bytes.fromhex(data)))


def test_the_first_message_may_be_written_at_length() -> None:
    assert read_place(bytes.fromhex("02 00 0a")) == ((0,), 2)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ("", "ends within the numbers"),
        ("02", "ends within the numbers"),
        ("04 02", "ends within the numbers"),
        ("02 80", "ends within the numbers"),
        ("02 80 80 80 80 80 00", "or these are none"),
        ("02 fe ff ff ff 7f", "no place in a file"),
        ("01", "by an old form"),
        ("02 01", "by an old form"),
        ("ca 01", "within 100 others"),
    ],
)
def test_numbers_that_are_no_place_are_an_error(data: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        read_place(bytes.fromhex(data))


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=100).map(tuple), st.binary(max_size=8))
def test_a_place_is_read_again(place: Place, following: bytes) -> None:
    data = place_bytes(place)
    assert read_place(data + following) == (place, len(data))


TEXT = proto3(
    r"""
// message Comment {}
/* message Comment { // */ import "message.proto"; option java_package = "message No {";
option (note) = { message: "no }" more { x: '\'' } };
enum Kind { NONE = 0; message = 1; }
message Bid {
  string message = 1 [(tag) = { message: 1 }, (tag) = "}"];
  repeated group Step = 2 { message NotCounted {} }
  map<string, Sub> subs = 3;
  oneof end { string sold = 4; int32 package = 5; }
  message Sub { message Deep{} }
  extend Bid { optional int32 message = 100; }
  reserved "message";;
  local message Own {}
}
service Shop { rpc Message (Bid) returns (Bid) { option (message) = "x"; } }
export message Last {}
"""
)
PLACES = {
    (0,): "shop.Bid", (0, 0): "shop.Bid.Sub", (0, 0, 0): "shop.Bid.Sub.Deep", (0, 1): "shop.Bid.Own",
    (1,): "shop.Last",
}  # fmt: skip


def test_the_messages_of_a_text_are_found() -> None:
    assert places_in(TEXT) == PLACES
    assert places_in("message A { message B {} } package late;") == {(0,): "late.A", (0, 0): "late.A.B"}
    assert places_in('syntax = "proto3"; message Größe {}') == {(0,): "Größe"}
    assert places_in("") == {}


def test_a_descriptor_has_the_messages_of_its_text() -> None:
    """Entries of maps and groups are counted in neither, as in Java's serializers."""
    text = proto3("message A { map<string, B> bs = 1; message B {} map<int32, B> more = 2; message C {} }")
    (file,) = descriptors({"a.proto": text})
    expected = {(0,): "shop.A", (0, 0): "shop.A.B", (0, 1): "shop.A.C"}
    assert places_in(b64encode(file.SerializeToString()).decode()) == places_in(text) == expected


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("message A {", "message A has no end"),
        ("message A", "message A has no body"),
        ("message A {}}", "a brace too many"),
        ("option x = {", "ends within a statement"),
        ("import 'x.proto", "a string without an end"),
        ('import "x.proto\\"', "a string without an end"),
        ('import "x\n";', "a string without an end"),
        ("message A {} /* to be continued", "within a comment"),
        ("message A {" * 200, "over 100 within each other"),
        ("message A {}" * 10_001, "over 10,000 messages"),
        ("message A { message " + "B" * 1000 + " {} }", "names of over 1,000 characters"),
        ("package " + "B" * 1001 + "; message A {}", "its package has a name"),
    ],
)
def test_a_text_that_is_broken_is_an_error(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        places_in(text)


@given(st.lists(st.sampled_from(["message ", "A", "{", "}", ";", '"', "'", "\\", "/*", "*/", "//", "\n", "package "])))
def test_no_text_raises_another_error(words: list[str]) -> None:
    with suppress(ValueError):
        places_in("".join(words))


@pytest.mark.parametrize(
    "text", ["/*" * 500_000, '"\\"' * 500_000, "message A { x " * 99 + "x" * 1_000_000, "a" * 999_999]
)
def test_a_large_text_is_read_once(text: str) -> None:
    """Such a one of a megabyte took hours, if each of its words was searched for an end."""
    with suppress(ValueError):
        places_in(text)
