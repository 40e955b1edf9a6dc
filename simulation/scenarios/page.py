"""The format of a scenario's file, and the comparison of a file with the current events."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from typing import Final

__all__ = ["Page", "differences"]

_WIDTH: Final = 110
_TOLERANCE: Final = 0.5
"""The seconds by which an event's time may differ from the file. The exact duration is not part of the scenario."""
_TIMED: Final = re.compile(r"^( *)(-?\d+\.\d) s( .*)$")


@dataclass(frozen=True, slots=True)
class Page:
    """The part of a scenario's file before the events."""

    title: str
    text: str
    guarantees: str
    paper: str
    topology: str

    def write(self, lines: list[tuple[float, str, str]]) -> str:
        """The file's content."""
        head = [self.title, "=" * len(self.title), ""]
        for paragraph in textwrap.dedent(self.text).strip().split("\n\n"):
            head += [*textwrap.wrap(" ".join(paragraph.split()), _WIDTH), ""]
        head += [f"Guarantees: {self.guarantees}", f"Paper:      {self.paper}", f"Topology:   {self.topology}", ""]
        width = max((len(who) for _, who, _ in lines), default=0)
        body = []
        for at, who, text in lines:
            if who:
                start = f"{at:7.1f} s  {who:{width}}  "
                body += textwrap.wrap(text, _WIDTH, initial_indent=start, subsequent_indent=" " * len(start))
            else:
                body += ["", *textwrap.wrap(text, _WIDTH, initial_indent="* ", subsequent_indent="  ")]
        return "\n".join([*head, *body]).rstrip() + "\n"


def differences(written: str, now: str) -> list[str]:
    """The lines that differ, as "- written" and "+ now". Times may differ by ``_TOLERANCE``."""
    olds, news = written.splitlines(), now.splitlines()
    found = []
    for index in range(max(len(olds), len(news))):
        old = olds[index] if index < len(olds) else None
        new = news[index] if index < len(news) else None
        if old is None or new is None or not _alike(old, new):
            found += [f"- {line}" for line in (old,) if line is not None]
            found += [f"+ {line}" for line in (new,) if line is not None]
    return found


def _alike(old: str, new: str) -> bool:
    one, other = _TIMED.match(old), _TIMED.match(new)
    if one is None or other is None:
        return old == new
    return one[3] == other[3] and abs(float(one[2]) - float(other[2])) <= _TOLERANCE
