"""Finds the line of a setting in a TOML file, which the TOML parser does not report. Pure."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["line_of"]

_HEADER: Final = re.compile(r"\s*\[+\s*([^\]]+?)\s*\]+")
_KEY: Final = re.compile(r"""\s*([\w."'-]+(?:\s*\.\s*[\w"'-]+)*)\s*=""")


def line_of(text: str, section: str, name: str) -> int:
    """Return the line (from 1) of ``name`` in ``section``. An empty ``name`` finds the section. 0: not found."""
    wanted = ".".join(part for part in (section, name) if part)
    here = ""
    for number, line in enumerate(text.splitlines(), 1):
        if (header := _HEADER.match(line)) is not None:
            here = _plain(header[1])
            found = here
        elif (key := _KEY.match(line)) is not None:
            found = f"{here}.{_plain(key[1])}" if here else _plain(key[1])
        else:
            continue
        if found == wanted or (not name and found.startswith(f"{wanted}.")):
            return number
    return 0


def _plain(key: str) -> str:
    return re.sub(r"""["'\s]""", "", key)
