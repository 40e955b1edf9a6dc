"""A catalog keeps the last readable content of a damaged value, and names the damaged ones (section 7.1)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millwheel.coordination.contract import DamagedValueError, KeyChange, KeyValue, PrefixSnapshot
from millwheel.model import catalog_keys as keys
from millwheel.model.catalog import Catalog
from millwheel.model.incarnation import IncarnationId

from .test_catalog import PUTS, contents


def snapshot(revision: int, damaged: frozenset[str] = frozenset()) -> PrefixSnapshot:
    entries = (KeyValue(key, value, 1, 1) for key, value in sorted(PUTS.items()))
    return PrefixSnapshot(
        revision,
        tuple(replace(one, value=b"", damage="checksum") if one.key in damaged else one for one in entries),
    )


def known_before(*, listed: bool, damaged: frozenset[str]) -> Catalog:
    """A catalog that knew all values, and then received that some are damaged."""
    known = Catalog()
    known.load(snapshot(1))
    if listed:
        known.load(snapshot(2, damaged))
    else:
        known.apply([KeyChange(key, b"", 2, "checksum") for key in sorted(damaged)])
    return known


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("key", sorted(PUTS.keys() - {"else/where", keys.SEQUENCER}))
def test_a_damaged_values_last_known_content_stands_in_any_order(key: str, listed: bool) -> None:
    """Regression: a damaged value counted as a removed topology, log or interval.

    So the process dropped what belonged to it.
    """
    whole = Catalog()
    whole.load(snapshot(1))
    known = known_before(listed=listed, damaged=frozenset({key}))
    assert known.damaged == {key: "checksum"}
    ignored = {"damaged", "revision", "_modified", "_unknown"}
    assert {name: value for name, value in contents(known).items() if name not in ignored} == {
        name: value for name, value in contents(whole).items() if name not in ignored
    }
    list(known.live_topologies())
    known.apply([KeyChange(key, PUTS[key], 3)])
    assert known.damaged == {}


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("key", [keys.topology_key("t/1"), keys.log_key("s")])
def test_a_damaged_topology_or_log_never_known_is_not_used(key: str) -> None:
    """Without its declaration, records would be committed without a delivery to the consumers that it names."""
    known = Catalog()
    known.load(snapshot(2, frozenset({key})))
    for question in (
        lambda: list(known.live_topologies()),
        lambda: known.consumers("s"),
        lambda: known.producers("s"),
        lambda: known.edges(),
        lambda: known.streams(),
    ):
        with pytest.raises(DamagedValueError, match=key):
            question()
    known.apply([KeyChange(key, None, 3)])
    known.consumers("s")
    assert known.damaged == {}


def test_values_that_are_no_records_or_foreign_are_harmless() -> None:
    """Regression: one such value prevented all processes from following the coordinator."""
    known = Catalog()
    odd = (
        "intervals/x",
        "intervals/x/abc",
        "authorities/x",
        "topologies/t",
        "sequencer",
        "injectors/s",
        "intervals/x/0",
    )
    known.load(PrefixSnapshot(1, tuple(KeyValue(key, b"\xff\xff", 1, 1) for key in odd)))
    assert known.damaged.keys() == set(odd)
    assert known.is_damaged(IncarnationId("x"))
    known.apply([KeyChange(key, b"\xff\xff", 2) for key in odd])
    known.apply([KeyChange(key, None, 3) for key in odd])
    assert known.damaged == {}
    assert not known.maps
