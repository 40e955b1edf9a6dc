"""Base parts have a bounded size, and are made in one pass over the rows (G13)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.worker.interval.commits import parts
from millwheel.worker.interval.commits.parts import in_parts


@given(
    sizes=st.lists(st.integers(0, 300), max_size=60),
    most=st.integers(1, 20),
    limit=st.integers(50, 1_000),
    wrong=st.sampled_from([None, 0, 10, 200]),
)
def test_parts_hold_all_rows_in_order_within_their_bounds(
    sizes: list[int], most: int, limit: int, wrong: int | None
) -> None:
    """``wrong``: the error of a row's size, as a surplus. None: the size is not used."""
    rows = [bytes(size) for size in sizes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "PART_BYTES", limit)
        made = list(in_parts(rows, most, None if wrong is None else lambda row: len(row) + wrong))
    assert [row for some, _ in made for row in some] == rows
    assert all(msgspec.msgpack.decode(blob)[1] == list(some) for some, blob in made)
    assert all(len(some) <= most for some, _ in made)
    assert all(len(blob) <= limit or len(some) == 1 for some, blob in made)


@pytest.mark.guarantee("G13")
def test_rows_whose_size_is_known_are_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: an outbox of 200 MiB was halved and encoded seven times. The worker's lease ended meanwhile."""
    encoded: list[int] = []

    def counting(value: Any) -> bytes:
        blob = msgspec.msgpack.encode((1, value))
        encoded.append(len(blob))
        return blob

    monkeypatch.setattr(parts, "encode_part", counting)
    monkeypatch.setattr(parts, "PART_BYTES", 10_000)
    rows = [bytes(1_000)] * 500
    assert len(list(in_parts(rows, 5_000, lambda row: len(row) + 10))) < 60
    assert sum(encoded) < 1.1 * 500 * 1_000
