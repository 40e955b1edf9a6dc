"""Memory that is full moves to huge pages, and other memory stays as it is."""

from __future__ import annotations

import ctypes
import mmap
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from millwheel.server.huge_pages import AREA_BYTES, FullAreas, areas_of, joined, keep_huge_pages
from tests.patience import patience

_MAPS = """00400000-00a00000 r-xp 00000000 08:01 42 /usr/bin/python3
01000000-01600000 rw-p 00000000 00:00 0 [heap]
7f0000100000-7f0000900000 rw-p 00000000 00:00 0 
7f0001000000-7f0001400000 rw-s 00000000 00:00 0 
7f0002000000-7f0002400000 rw-p 00000000 08:01 42 /lib/libc.so.6
7ffc00000000-7ffc00800000 rw-p 00000000 00:00 0 [stack]
"""  # noqa: W291 - as Linux writes it
_HEAP = [0x1000000, 0x1200000, 0x1400000]
_MAPPED = [0x7F0000200000, 0x7F0000400000, 0x7F0000600000]


class Pagemap:
    """Which pages are in memory."""

    def __init__(self) -> None:
        self.missing: dict[int, int] = {}
        """By area: the number of its pages that are not."""

    def notes(self, offset: int, count: int) -> bytes:
        missing = self.missing.get(offset // 8 * 4096, 0)
        return bytes(8 * missing) + (bytes(7) + b"\x81") * (count // 8 - missing)


def test_only_whole_areas_of_own_memory_count() -> None:
    assert list(areas_of(_MAPS)) == [*_HEAP, *_MAPPED]


def test_an_area_is_found_once_it_is_full() -> None:
    pagemap = Pagemap()
    full = FullAreas(pagemap.notes)
    pagemap.missing = {_HEAP[1]: 33, _MAPPED[0]: 32}
    assert full.find(_MAPS, 100) == [_HEAP[0], _HEAP[2], *_MAPPED]
    assert full.find(_MAPS, 100) == []
    pagemap.missing = {}
    assert full.find(_MAPS, 100) == [_HEAP[1]]


def test_a_look_finds_so_many_areas_at_most() -> None:
    full = FullAreas(Pagemap().notes)
    assert full.find(_MAPS, 4) == [*_HEAP, _MAPPED[0]]
    assert full.find(_MAPS, 4) == _MAPPED[1:]


def test_memory_that_was_given_back_is_found_again() -> None:
    full = FullAreas(Pagemap().notes)
    full.find(_MAPS, 100)
    assert full.find("", 100) == []
    assert full.find(_MAPS, 100) == [*_HEAP, *_MAPPED]


def test_areas_that_follow_one_another_are_one_call() -> None:
    assert joined([*_HEAP, *_MAPPED]) == [(_HEAP[0], 3 * AREA_BYTES), (_MAPPED[0], 3 * AREA_BYTES)]


def _huge_bytes() -> int:
    rollup = Path("/proc/self/smaps_rollup").read_text()
    return int(rollup.partition("AnonHugePages:")[2].split()[0]) << 10


def _may_collapse() -> bool:
    if "[never]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text():
        return False
    with mmap.mmap(-1, 2 * AREA_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.write(b"x" * len(memory))
        start = ctypes.c_char.from_buffer(memory)
        advise = ctypes.CDLL(None).madvise
        area = -(-ctypes.addressof(start) // AREA_BYTES) * AREA_BYTES
        done = not int(advise(ctypes.c_void_p(area), ctypes.c_size_t(AREA_BYTES), 25))
        del start
    return done


@pytest.mark.skipif(not _may_collapse(), reason="Linux before 6.1, or without huge pages")
def test_a_process_moves_its_full_memory() -> None:
    filled = [b"%0100d" % number for number in range(300_000)]
    before = _huge_bytes()
    with ExitStack() as stack:
        keep_huge_pages(stack, period=0.05)
        end = time.monotonic() + patience(30)
        while _huge_bytes() < before + 8 * AREA_BYTES:
            assert time.monotonic() < end, "the pages stay small"
            time.sleep(0.05)
    assert filled == [b"%0100d" % number for number in range(300_000)]
