"""Foreign content in a journal or a base raises the one error for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millwheel.store.contract import CorruptValueError
from millwheel.worker.interval.commits.divided import joined
from millwheel.worker.interval.entry import TimerRow, decode_entry, decode_part
from millwheel.worker.log.entry import LogEntry, decode

READERS: list[Callable[[bytes], Any]] = [
    lambda blob: decode_entry(blob, "journal j, entry 1"),
    lambda blob: joined(b"\x94\x02" + blob, 1, {}, "journal j, entry 1"),
    lambda blob: decode_part(blob, list[TimerRow], "journal j, entry 1"),
    lambda blob: decode(blob, LogEntry, "journal j, entry 1"),
]
NO_TEXT = b"\x92\x01\x91\x94\xc4\x01k\xc2\xa2\xff\xfe"
"""A timer whose tag is no UTF-8."""


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("blob", [b"", b"\xc1", NO_TEXT, b"\x91" * 5_000])
def test_contents_that_are_none_of_ours_are_named(reader: Callable[[bytes], Any], blob: bytes) -> None:
    """Regression: invalid UTF-8 raised another error, so the interval was opened again and again."""
    with pytest.raises(CorruptValueError, match="journal j, entry 1"):
        reader(blob)
