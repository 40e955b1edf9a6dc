"""In which line of a TOML file a setting stands: the parser does not tell. Pure."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["line_of"]

_HEADER: Final = re.compile(r"\s*\[+\s*([^\]]+?)\s*\]+")
_KEY: Final = re.compile(r"""\s*([\w."'-]+(?:\s*\.\s*[\w"'-]+)*)\s*=""")


def line_of(text: str, section: str, name: str) -> int:
    """The line (from 1) of ``name`` in ``section``, or of the section if ``name`` is empty; 0 if it is not found."""
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
