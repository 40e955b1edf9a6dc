"""The identity of an injected record (6.1.1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.client.injector.ids import IdHasher, drawn_scope, partition_scope
from millwheel.sdk.errors import UsageError

names = st.text(min_size=1, max_size=4)


@pytest.mark.paper(section="6.1.1")
@given(st.tuples(names, names, names), st.tuples(names, names, names))
def test_ids_are_the_same_only_within_one_stream_and_source(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    hashes = [IdHasher(stream, source).hash_all([id_])[0] for stream, source, id_ in (one, other)]
    assert (hashes[0] == hashes[1]) is (one == other)


@pytest.mark.paper(section="6.1.1")
def test_an_id_is_what_it_was_for_stored_ids_outlive_versions() -> None:
    hasher = IdHasher("queries", "reader-1")
    assert hasher.hash_all(["7", 7, b"7"]) == [bytes.fromhex("d57a9321c6e7d2fdf9b98b3410c00220")] * 3


@pytest.mark.parametrize("bad", ["", b"", None, 1.5, True])
def test_what_is_no_id_is_named(bad: object) -> None:
    with pytest.raises(UsageError, match="id is"):
        IdHasher("s", "p").hash_all([bad])  # type: ignore[list-item]


def test_no_partition_is_taken_for_what_a_process_counts() -> None:
    assert partition_scope("s", "p", "s5") != drawn_scope("s", "p", 5)
