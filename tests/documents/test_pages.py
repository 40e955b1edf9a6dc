"""Every code block of the documentation does what it says: programs run, commands succeed, settings load.

New blocks are found without further ado. A new page needs an entry in ``CONTINUES`` of ``reading`` if it builds on the
README, and in ``FILES`` if it reads files that the reader is to have.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from millwheel.config import load
from tests.documents.blocks import LANGUAGES, Block, commands_of
from tests.documents.reading import ALL, NOT_RUN, RUN
from tests.house.tree import ROOT, text_files
from tests.patience import patience


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", RUN)
def test_every_example_on_a_page_works(page: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.documents.reading", page, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=patience(280), check=False)
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-8_000:]


def test_every_block_names_its_language() -> None:
    assert [str(block) for block in _blocks() if block.language not in LANGUAGES] == []


def test_every_console_line_is_a_command_or_follows_one() -> None:
    first = {str(block): block.code.splitlines()[0] for block in _blocks("console")}
    assert {place: line for place, line in first.items() if not line.startswith("$ ")} == {}


def test_commands_that_are_not_run_are_on_a_page() -> None:
    printed = {command.text for block in _blocks("console") for command in commands_of(block)}
    assert set(NOT_RUN) - printed == set()


@pytest.mark.parametrize(
    "block", [block for blocks in ALL.values() for block in blocks if block.language == "toml"], ids=str
)
def test_settings_load(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "millwheel.toml"
    file.write_text(block.code)
    load(file)


def test_json_is_json() -> None:
    for block in _blocks("json"):
        json.loads(block.code)


def test_unpublished_packages_are_not_called_published() -> None:
    claim = re.compile(r"pip install (-\S+ )*['\"]?openmillwheel")
    assert [str(path) for path in text_files() if path != Path(__file__) and claim.search(path.read_text())] == []


def _blocks(language: str = "") -> list[Block]:
    return [block for blocks in ALL.values() for block in blocks if language in ("", block.language)]
