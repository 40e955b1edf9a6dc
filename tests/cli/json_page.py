"""docs/json-output.md as data: what each command prints with -o json."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tests.house.tree import ROOT

PAGE: Final = ROOT / "docs" / "json-output.md"
_ROW: Final = re.compile(r"\| (?P<cells>.+) \|")
_TIME: Final = re.compile(r"[+-]inf|[+-]?\d+-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_PLAIN: Final[dict[str, tuple[type, ...]]] = {"text": (str,), "integer": (int,), "number": (int, float)}


@dataclass
class Page:
    """The forms of the page, and those that values have had."""

    commands: dict[str, str] = field(default_factory=dict)
    """What each command prints."""
    forms: dict[str, dict[str, str]] = field(default_factory=dict)
    """The fields of each form, with their types."""
    seen: set[str] = field(default_factory=set)

    def check(self, value: Any, kind: str, where: str) -> None:
        """Fail unless ``value`` is exactly what the page says of ``kind``."""
        if kind.endswith(" or null"):
            if value is None:
                return
            kind = kind.removesuffix(" or null")
        if kind.startswith("list of "):
            assert isinstance(value, list), f"{where} is {value!r}"
            for number, item in enumerate(value):
                self.check(item, kind.removeprefix("list of "), f"{where}[{number}]")
        elif kind == "time":
            assert isinstance(value, str), f"{where} is {value!r}"
            assert _TIME.fullmatch(value), f"{where} is {value!r}"
        elif kind == "boolean":
            assert isinstance(value, bool), f"{where} is {value!r}"
        elif kind in _PLAIN:
            assert isinstance(value, _PLAIN[kind]), f"{where} is {value!r}"
            assert not isinstance(value, bool), f"{where} is {value!r}"
        elif kind != "any":
            self._check_form(value, kind, where)

    def _check_form(self, value: Any, form: str, where: str) -> None:
        self.seen.add(form)
        fields = self.forms[form]
        assert isinstance(value, dict), f"{where} is {value!r}, and not {form}"
        assert list(value.keys() - fields.keys()) == [], f"{where}: the page has not all fields of {form}"
        assert list(fields.keys() - value.keys()) == [], f"{where}: it has not all fields of {form}"
        for name, kind in fields.items():
            self.check(value[name], kind, f"{where}.{name}")


def named(kind: str) -> str:
    """The form, or the plain type, in the description of a type."""
    return kind.removesuffix(" or null").removeprefix("list of ")


def read_page() -> Page:
    """Read the page."""
    page = Page()
    form = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("#"):
            form = line.removeprefix("### ") if line.startswith("### ") else ""
            if form:
                page.forms[form] = {}
        elif (base := re.match(r"The fields of (.+), and:", line)) is not None:
            page.forms[form].update(page.forms[base[1]])
        elif cells := list(_cells(line)):
            if form:
                page.forms[form][cells[0].strip("`")] = cells[1]
            else:
                for command in cells[0].split(", "):
                    page.commands[command.strip("`")] = cells[1].removesuffix(", each on a line")
    return page


def _cells(line: str) -> Iterator[str]:
    found = _ROW.fullmatch(line)
    if found is not None and found["cells"].startswith("`"):
        yield from found["cells"].split(" | ")
