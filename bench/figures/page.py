"""Puts generated tables into a page, between ``<!-- table NAME -->`` and ``<!-- end -->``. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["filled"]

_PLACE = re.compile(r"(?P<begin><!-- table (?P<name>[\w.-]+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)


def filled(page: str, tables: Mapping[str, str]) -> str:
    """The page with the present tables. A place whose table was not measured says so.

    >>> filled("<!-- table a -->\\nold\\n<!-- end -->", {"a": "new\\n"})
    '<!-- table a -->\\nnew\\n<!-- end -->'
    """

    def table(place: re.Match[str]) -> str:
        name = place["name"]
        return place["begin"] + tables.get(name, "Not measured yet.\n") + place["end"]

    return _PLACE.sub(table, page)
