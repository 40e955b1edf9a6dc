"""A takeover stops at a journal that it cannot read completely. It skips no entry (6.1.2; G1, G2)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import millwheel as mw
from millwheel.store.contract import CorruptValueError, JournalHead, PartId
from millwheel.worker.interval.commits.base_parts import HOLDS_PART
from millwheel.worker.interval.entry import FORMAT, encode_part
from millwheel.worker.interval.recovery import recover
from millwheel.worker.messages import Opened
from tests.worker.interval.driver import IntervalDriver


class Count(mw.Computation[tuple[str, str], int]):
    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        ctx.state += 1


def entries(count: int) -> list[bytes]:
    """The entries that an owner commits for a number of records."""
    driver = IntervalDriver(Count())
    for number in range(count):
        driver.deliver(("k", "v", number + 1))
        driver.commit_all()
    assert len(driver.entries) == count
    return driver.entries


@pytest.mark.guarantee("G1", section="6.1.2")
def test_a_journal_without_its_last_entries_is_not_taken_over() -> None:
    """The present entries have no gap. Only the head shows that there were more."""
    opened = Opened(JournalHead(8, 3, 0, ()), {}, entries(2))
    with pytest.raises(CorruptValueError, match="entries 1 to 3 are needed and 2 were found"):
        recover(IntervalDriver(Count()).state, opened)


@pytest.mark.guarantee("G1", section="6.1.2")
def test_an_entry_of_another_format_is_not_read() -> None:
    (entry,) = entries(1)
    fields: list[Any] = msgspec.msgpack.decode(entry)
    assert fields[0] == FORMAT
    later = msgspec.msgpack.encode([FORMAT + 1, *fields[1:]])
    with pytest.raises(CorruptValueError, match=f"entry 1: journal entry of format {FORMAT + 1}"):
        IntervalDriver(Count(), entries=[later])


@pytest.mark.guarantee("G2", section="6.1.2")
@pytest.mark.parametrize(
    ("name", "blob", "message"),
    [
        ("rumours", encode_part([]), "a part of a kind that this version does not know"),
        (HOLDS_PART, msgspec.msgpack.encode((FORMAT + 1, [])), f"base part of format {FORMAT + 1}"),
        (HOLDS_PART, b"", "not a base part"),
    ],
)
def test_a_base_part_that_cannot_be_read_is_not_passed_over(name: str, blob: bytes, message: str) -> None:
    with pytest.raises(CorruptValueError, match=message):
        IntervalDriver(Count(), parts={PartId(name, 7, 1): blob})
