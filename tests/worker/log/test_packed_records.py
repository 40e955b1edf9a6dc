"""A log keeps packed values as others: in its journal, its rows, and for subscribers (4.3, 6.2; G1, G2, G12)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.rpc.packed_values import PackedValues
from millwheel.worker.dedup import PositionIds
from millwheel.worker.log import AckOffset, LogSettings
from millwheel.worker.log.segment_values import SegmentValues
from tests.stored_rows import rows_of
from tests.worker.log.driver import LOG, SMALL, LogDriver, numbered

parts = st.lists(st.tuples(st.booleans(), st.integers(1, 9), st.sampled_from([20, 130])), max_size=12)


@given(parts, st.integers(0, 3))
def test_a_log_of_packed_values_is_that_of_others(made: list[tuple[bool, int, int]], crashes: int) -> None:
    drivers, readers = (LogDriver(SMALL), LogDriver(SMALL)), []
    for packing, driver in enumerate(drivers):
        reader = driver.subscribe("c")
        for at, (packed, count, size) in enumerate(made):
            values: Any = numbered(driver.position, count, size)
            driver.deliver(PackedValues.pack(values) if packed and packing else values)
            driver.run()
            driver.handle(AckOffset(reader, max(0, len(reader.values) - 5)))
            if at < crashes:
                driver.crash(applied=True)
                reader = driver.subscribe("c", resume=len(reader.values))
        driver.run()
        readers.append(reader)
    plain, packed_too = drivers
    assert packed_too.stored.entries == plain.stored.entries
    assert packed_too.stored.parts == plain.stored.parts
    assert rows_of(packed_too.store, LOG) == rows_of(plain.store, LOG)
    for one, other in zip(*(reader.published for reader in readers), strict=True):
        assert (one.first, list(one.values), one.timestamps) == (other.first, list(other.values), other.timestamps)


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_part_of_packed_values_that_is_known_is_left_out() -> None:
    driver = LogDriver()
    tail, values = driver.subscribe(), numbered(0, 6)
    driver.deliver(PackedValues.pack(values[:4]), ids=PositionIds("windows/p/0", 0, range(4)))
    driver.run()
    driver.deliver(PackedValues.pack(values[2:]), ids=PositionIds("windows/p/0", 0, range(2, 6)))
    driver.run()
    assert tail.values == values
    driver.crash(applied=True)
    again = driver.subscribe(resume=0)
    driver.run()
    assert again.values == values


@pytest.mark.guarantee("G13")
def test_packed_values_are_counted_and_cut_as_others() -> None:
    settings, values = LogSettings(publish_records=10, publish_bytes=100, segment_bytes=300), numbered(0, 40)
    sizes, segments = [], []
    for given_values in (values, PackedValues.pack(values)):
        driver = LogDriver(settings)
        tail = driver.subscribe()
        driver.deliver(given_values)
        queued = driver.core.state.intake.bytes
        driver.run()
        records = driver.core.state.records
        sizes.append((queued, records.kept, records.memory))
        segments.append(([one.first for one in records.closed], [len(one.values) for one in tail.published]))
    assert sizes[0] == sizes[1]
    assert segments[0] == segments[1]


@given(st.lists(st.tuples(st.booleans(), st.lists(st.binary(max_size=3), max_size=5)), max_size=8), st.data())
def test_values_of_a_segment_are_read_from_any_place(made: list[tuple[bool, list[bytes]]], data: st.DataObject) -> None:
    values, model = SegmentValues(), list[bytes]()
    for packed, some in made:
        values.add(PackedValues.pack(some) if packed else some)
        model += some
    first, end = sorted(data.draw(st.tuples(*[st.integers(0, len(model))] * 2)))
    assert (len(values), list(values), list(values.whole())) == (len(model), model, model)
    assert list(values.between(first, end)) == model[first:end]
