"""docs/operations.md lists every setting as it is declared; `python -m tests.config.test_reference` writes it."""

from __future__ import annotations

import re
import tomllib
from itertools import groupby
from pathlib import Path
from typing import Any

from millwheel.config import Setting, Settings, declared, load
from millwheel.config.rules import impossible

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "operations.md"
BEGIN, END = "<!-- settings: begin -->\n", "<!-- settings: end -->\n"


def tables() -> str:
    """The reference."""
    parts = []
    for section, settings in groupby(declared(Settings), key=lambda one: one.section):
        rows = "".join(
            f"| `{one.name}` | {_default(one)} | {_cell(one.meaning)} | {_cell(one.takes)} |\n" for one in settings
        )
        parts.append(f"### [{section}]\n\n| setting | default | meaning | takes |\n|---|---|---|---|\n{rows}\n")
    return "".join(parts)


def _default(one: Setting) -> str:
    value: Any = one.default
    if value is None or value == "":
        return ""
    if isinstance(value, tuple):
        return f"`[{', '.join(_quoted(item) for item in value)}]`"
    return f"`{_quoted(value)}`"


def _quoted(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (int, float)) else f'"{value}"'


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def test_the_page_has_every_setting_as_it_is() -> None:
    text = PAGE.read_text()
    assert text[text.index(BEGIN) + len(BEGIN) : text.index(END)] == tables(), (
        "run python -m tests.config.test_reference"
    )


def test_the_example_is_a_configuration() -> None:
    path = ROOT / "deploy" / "systemd" / "millwheel.toml"
    assert tomllib.loads(path.read_text())
    assert list(impossible(load(path).settings)) == []


def test_the_unit_files_set_what_there_is() -> None:
    for path in (ROOT / "deploy" / "systemd").glob("*.service"):
        text = path.read_text()
        environment = dict(re.findall(r"^Environment=(\w+)=(.*)$", text, re.MULTILINE))
        load(ROOT / "deploy" / "systemd" / "millwheel.toml", environment)
        role = path.stem.removeprefix("millwheel-")
        assert f"ExecStart=/opt/millwheel/bin/millwheel {role} run\n" in text


if __name__ == "__main__":
    page = PAGE.read_text()
    PAGE.write_text(page[: page.index(BEGIN) + len(BEGIN)] + tables() + page[page.index(END) :])
