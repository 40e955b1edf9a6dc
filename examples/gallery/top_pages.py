"""Top pages: the three most viewed pages of each minute.

The first step counts each page for itself, so it may run on many machines. ``complete`` waits until the counts of all
pages of a minute are there. Only then can anybody say which ones are the most viewed.
"""

from __future__ import annotations

import msgspec

import millwheel as mw
from millwheel import agg, windows

__all__ = ["Chart", "Views", "top_pages"]


class Views(msgspec.Struct, frozen=True):
    """How often a page was viewed in the minute that ended at ``end``."""

    key: str
    end: mw.Timestamp
    views: int


class Chart(msgspec.Struct, frozen=True):
    """The most viewed pages of a minute."""

    end: mw.Timestamp
    pages: list[str]


def chart(minute: list[Views]) -> list[Chart]:
    """The three most viewed pages. Equal ones are in the order of the alphabet."""
    ranked = sorted(minute, key=lambda one: (-one.views, one.key))
    return [Chart(minute[0].end, [one.key for one in ranked[:3]])]


top_pages = mw.Topology("top-pages")
pages = top_pages.source("pages", str).key_by(lambda page: page)
counts = pages.window(windows.tumbling(mw.minutes(1))).aggregate("counts", Views, views=agg.count())
counts.key_by("end").complete("charts", chart, Chart)
