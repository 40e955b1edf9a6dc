"""Maps whose elements end, against a dict with ends: renewed, removed, stored and read again (section 4.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.sdk.growing import tree
from millwheel.sdk.growing.codec import any_state_codec
from millwheel.sdk.growing.pages import ReadPages
from millwheel.sdk.schema import state_schema
from tests.sdk.growing.pages import pages_of, tree_of

TINY = {"PAGE_BYTES": 120, "ROOT_BYTES": 40, "BLOB_BYTES": 70, "SMALL_BYTES": 30}
KEYS = [b"", b"\x00", b"\x01", b"\xff", b"\xff" * 9, *(b"%d" % number for number in range(20))]
TIMES = [mw.MIN_TIMESTAMP, *map(mw.Timestamp, range(-1, 3)), mw.MAX_TIMESTAMP]


class Cart(mw.GrowingState):
    amounts: mw.ExpiringMapState[bytes, bytes]


CODEC = any_state_codec(Cart, "computation 'carts'")


class Stored:
    """A cart with its stored pages, and the model: each key's end and value."""

    def __init__(self) -> None:
        self.encoded = b""
        self.nodes: dict[int, bytes] = {}
        self.kept: dict[bytes, tuple[int, bytes]] = {}
        self.crash(0, 0, 0)

    @property
    def amounts(self) -> mw.ExpiringMapState[bytes, bytes]:
        return self.cart.amounts

    def put(self, key: int, time: int, size: int) -> None:
        name, ends, value = KEYS[key], TIMES[time], bytes([size]) * size
        self.amounts.put(name, value, ends=ends)
        self.model[name] = ends, value

    def delete(self, key: int, time: int, size: int) -> None:
        if self.model.pop(KEYS[key], None) is None:
            with pytest.raises(KeyError):
                del self.amounts[KEYS[key]]
        else:
            del self.amounts[KEYS[key]]

    def expire(self, limit: int, time: int, size: int) -> None:
        ended = sorted((end, key) for key, (end, _) in self.model.items() if end <= TIMES[time])[: limit or None]
        expected = [(key, self.model.pop(key)[1]) for _, key in ended]
        assert self.amounts.expire(TIMES[time], limit=limit or None) == expected

    def clear(self, key: int, time: int, size: int) -> None:
        self.amounts.clear()
        self.model.clear()

    def commit(self, key: int, time: int, size: int) -> None:
        self.encoded, self.kept = CODEC.verify(self.cart), self.model
        for number, node in pages_of(self.cart).changed.items():
            self.nodes.pop(number, None)
            if node is not None:
                self.nodes[number] = node.encode()
        self.crash(0, 0, 0)

    def crash(self, key: int, time: int, size: int) -> None:
        """Go on with what was committed last."""
        self.cart: Cart = CODEC.decode(self.encoded) if self.encoded else Cart()
        pages_of(self.cart).source = ReadPages(self.nodes.__getitem__)
        self.model = dict(self.kept)

    def check(self) -> None:
        amounts = self.amounts
        assert dict(amounts) == {key: value for key, (_, value) in self.model.items()}
        assert (len(amounts), tree_of(amounts).count) == (len(self.model), 2 * len(self.model))
        assert amounts.next_end() == min((end for end, _ in self.model.values()), default=None)
        for key in KEYS:
            assert (key in amounts, amounts.get(key)) == (key in self.model, self.model.get(key, (0, None))[1])
            assert amounts.end_of(key) == self.model.get(key, (None,))[0]

    def collected(self) -> None:
        """Remove everything, and the pages of it."""
        self.expire(0, len(TIMES) - 1, 0)
        self.commit(0, 0, 0)
        while pages_of(self.cart).garbage:
            pages_of(self.cart).collect(50)
            self.commit(0, 0, 0)


WHATS = ["put", "put", "put", "put", "delete", "expire", "clear", "commit", "crash"]
STEPS = st.tuples(
    st.sampled_from(WHATS), st.integers(0, len(KEYS) - 1), st.integers(0, len(TIMES) - 1), st.integers(0, 90)
)


@given(st.lists(STEPS, max_size=80))
def test_a_map_with_ends_is_like_a_dict_with_ends(steps: list[tuple[str, int, int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        for name, size in TINY.items():
            patched.setattr(tree, name, size)
        stored = Stored()
        for what, key, time, size in steps:
            getattr(stored, what)(key, time, size)
            stored.check()
        stored.collected()
        assert (stored.nodes, stored.encoded) == ({}, b""), "neither ends nor pages are left"


def test_an_element_is_there_until_it_is_removed() -> None:
    amounts = Cart().amounts
    for key, ends in [(b"a", 10), (b"b", 10), (b"c", 20), (b"a", 30)]:
        amounts.put(key, b"", mw.Timestamp(ends))
    assert amounts.expire(mw.Timestamp(9)) == []
    assert amounts.expire(mw.Timestamp(10), limit=1) == [(b"b", b"")]
    assert (amounts.next_end(), b"c" in amounts, len(amounts)) == (20, True, 2)
    assert repr(amounts) == "ExpiringMapState(b'a', b'c')"


def test_operators_see_elements_and_no_ends() -> None:
    stored = Stored()
    for number in range(500):
        stored.amounts.put(b"%d" % number, bytes(20), mw.Timestamp(number))
    shown = msgspec.msgpack.decode(CODEC.present(CODEC.verify(stored.cart)))
    assert shown["amounts"]["elements"] == 500
    rows = {row.path: row.type for row in state_schema(Cart, None, 1).fields}
    assert rows["amounts"] == "growing map of elements that end"
    assert rows["amounts[key]"] == rows["amounts[]"] == "bytes"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda amounts: amounts.put(b"a", b"", 1.5), "put takes a Timestamp (integer microseconds), not float: 1.5"),
        (lambda amounts: amounts.put(b"a", b"", None), "put takes a Timestamp"),
        (lambda amounts: amounts.put("a", b"", 1), "Cart.amounts, key carries bytes, not str: 'a'"),
        (lambda amounts: amounts.put(b"a", 5, 1), "Cart.amounts carries bytes, not int: 5"),
        (lambda amounts: amounts.expire("now"), "expire takes a Timestamp"),
        (lambda amounts: amounts.expire(1, limit=0), "expire(limit=…) is a number of elements from 1, not 0"),
    ],
)
def test_wrong_arguments_change_nothing(wrong: Callable[[Any], Any], message: str) -> None:
    amounts = Cart().amounts
    amounts.put(b"a", b"x", mw.Timestamp(1))
    with pytest.raises(mw.MillwheelError) as caught:
        wrong(amounts)
    assert message in str(caught.value)
    assert (dict(amounts), amounts.next_end()) == ({b"a": b"x"}, 1)


def test_a_removed_element_leaves_no_end() -> None:
    amounts = Cart().amounts
    amounts.put(b"pear", b"1", ends=mw.Timestamp(10))
    amounts.put(b"plum", b"2", ends=mw.Timestamp(20))
    del amounts[b"pear"]
    assert (amounts.next_end(), len(amounts)) == (20, 1)
