"""Sessions: the visits of a web site, each until half an hour passes without a page.

A visit is complete when the low watermark has passed its end, in whatever order its pages arrived. A page that arrives
when its visit has ended already goes to ``missed``.
"""

from __future__ import annotations

import msgspec

import millwheel as mw
from millwheel import agg, windows

__all__ = ["PageView", "Visit", "visits"]


class PageView(msgspec.Struct, frozen=True):
    """Somebody looks at a page."""

    visitor: str
    page: str


class Visit(msgspec.Struct, frozen=True):
    """The pages of one visit, and where it began."""

    visitor: str
    start: mw.Timestamp
    end: mw.Timestamp
    pages: int
    first: PageView


visits = mw.Topology("visits")
views = visits.source("views", PageView)
sessions = views.key_by("visitor").window(windows.session(mw.minutes(30)))
sessions.aggregate("visits", Visit, pages=agg.count(), first=agg.first(), too_late="missed")
