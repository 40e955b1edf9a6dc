"""Memory in huge pages: a look-up in a large cache then waits for memory once, and not for the address of it as well.

With a million keys, almost each look-up touches memory that no cache of the processor has. With pages of 4 KiB the
processor does not know where it is either, and reads that from further memory, on a virtual machine several times. A
page of 2 MiB is found at once.

Python takes its memory in pieces that are too small for huge pages. So a thread looks for areas that have become full,
and asks Linux to put each into one huge page (``MADV_COLLAPSE``, from Linux 6.1 on). It changes no content. An area
counts as full if hardly a page of it is missing, so the process does not grow by it. Linux may refuse, and nothing
depends on it. With ``never`` in ``/sys/kernel/mm/transparent_hugepage/enabled`` the thread does not begin.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import Final

__all__ = ["AREA_BYTES", "FullAreas", "areas_of", "joined", "keep_huge_pages"]

log = logging.getLogger("millwheel")

AREA_BYTES: Final = 2 << 20
"""The size of a huge page, and so of an area: on x86, and on ARM with pages of 4 KiB."""
_PAGE_BYTES: Final = 4096
_PAGES: Final = AREA_BYTES // _PAGE_BYTES
_FULL: Final = _PAGES * 15 // 16
"""With so many pages in memory, an area is full."""
_NOTE_BYTES: Final = 8
"""The bytes of a page's note in ``pagemap``. The top bit of the last one says that the page is in memory."""
_ABSENT: Final = bytes(range(128))
_PERIOD_SECONDS: Final = 5.0
_MOST_AREAS: Final = 128
"""The most areas of one look. The thread takes one to five milliseconds for each, without the interpreter lock."""
_MADV_COLLAPSE: Final = 25
_REGION: Final = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0 *(\[(heap|anon:.*)\])?$", re.MULTILINE)
"""A line of ``maps``: memory that is private, may be written, and is of no file or stack."""


def areas_of(maps: str) -> Iterator[int]:
    """The addresses of the areas that are whole in one region of ``maps``, the text of ``/proc/self/maps``.

    >>> list(map(hex, areas_of("00100000-00700000 rw-p 00000000 00:00 0")))
    ['0x200000', '0x400000']
    """
    for found in _REGION.finditer(maps):
        start, end = int(found[1], 16), int(found[2], 16)
        yield from range(-(-start // AREA_BYTES) * AREA_BYTES, end - AREA_BYTES + 1, AREA_BYTES)


def joined(areas: Iterable[int]) -> list[tuple[int, int]]:
    """Areas that follow one another, as (address, bytes).

    >>> joined([0x200000, 0x400000, 0x800000])
    [(2097152, 4194304), (8388608, 2097152)]
    """
    runs = groupby(enumerate(areas), lambda one: one[1] - one[0] * AREA_BYTES)
    found = [[area for _, area in run] for _, run in runs]
    return [(run[0], len(run) * AREA_BYTES) for run in found]


class FullAreas:
    """Finds areas that have become full. Each is found once, as long as it stays."""

    def __init__(self, notes: Callable[[int, int], bytes]) -> None:
        """``notes`` reads ``pagemap``: bytes from an offset on, as many as are asked for or fewer."""
        self._notes = notes
        self._known: set[int] = set()

    def find(self, maps: str, most: int) -> list[int]:
        """Up to ``most`` areas that are full and were not found before. ``maps``: as of ``areas_of``."""
        areas = list(areas_of(maps))
        self._known.intersection_update(areas)
        found: list[int] = []
        for area in areas:
            if len(found) == most:
                break
            if area not in self._known and self._is_full(area):
                found.append(area)
        self._known.update(found)
        return found

    def _is_full(self, area: int) -> bool:
        notes = self._notes(area // _PAGE_BYTES * _NOTE_BYTES, _PAGES * _NOTE_BYTES)
        return len(notes[_NOTE_BYTES - 1 :: _NOTE_BYTES].translate(None, _ABSENT)) >= _FULL


def keep_huge_pages(stack: ExitStack, period: float = _PERIOD_SECONDS) -> None:
    """Move full areas to huge pages until ``stack`` closes or Linux refuses. ``period``: seconds between looks."""
    try:
        if "[never]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text():
            return
        advise = ctypes.CDLL(None, use_errno=True).madvise
    except (OSError, AttributeError) as error:
        log.debug("memory stays in small pages: %s", error)
        return
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    ended = threading.Event()
    stack.callback(ended.set)
    threading.Thread(target=_run, args=(advise, ended, period), name="millwheel-pages", daemon=True).start()


def _run(advise: Callable[[int, int, int], int], ended: threading.Event, period: float) -> None:
    try:
        with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:

            def notes(offset: int, count: int) -> bytes:
                pagemap.seek(offset)
                return pagemap.read(count)

            full = FullAreas(notes)
            while not ended.wait(period):
                for address, size in joined(full.find(Path("/proc/self/maps").read_text(), _MOST_AREAS)):
                    if advise(address, size, _MADV_COLLAPSE) and ctypes.get_errno() == errno.EINVAL:
                        raise OSError(errno.EINVAL, "Linux is before 6.1, or forbids this process")
    except OSError as error:
        log.debug("memory stays in small pages: %s", error)
