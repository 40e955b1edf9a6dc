"""Tests are named after a behaviour, and marked with the guarantee and the section of the paper that they hold."""

from __future__ import annotations

import re
from typing import Final

import pytest

from tests.house.guarantees import PAGE, all_tests, page_with_lists
from tests.house.tree import ROOT

GUARANTEES: Final = [f"G{number}" for number in range(1, 16)]
MAX_NAME: Final = 60
# The numbered sections of the MillWheel paper, and its figures.
SECTIONS: Final = re.compile(r"[1-9]|10|4\.[1-6]|5\.[12]|6\.[12]|6\.1\.[1-3]|7\.[12]|8\.[1-4]|fig\. (?:[1-9]|1\d)")


def test_the_page_states_every_guarantee_once() -> None:
    assert re.findall(r"^## (G\d+) ", PAGE.read_text(), flags=re.MULTILINE) == GUARANTEES


def test_the_page_lists_the_tests_that_are_marked() -> None:
    text = PAGE.read_text()
    assert re.findall(r"<!-- tests of (G\d+): begin -->", text) == GUARANTEES
    assert text == page_with_lists(text), "run python -m tests.house.guarantees --write"


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_guarantee_has_a_test_with_a_section(guarantee: str) -> None:
    assert [test.name for test in all_tests() if guarantee in test.guarantees and test.section]


def test_markers_name_guarantees_and_sections_that_exist() -> None:
    assert [test for test in all_tests() if not set(test.guarantees) <= set(GUARANTEES)] == []
    given = [(test, section) for test in all_tests() if test.section for section in test.section.split(", ")]
    assert [test for test, section in given if not SECTIONS.fullmatch(section)] == []


def test_a_test_name_has_at_most_60_characters() -> None:
    assert [test.place for test in all_tests() if len(test.name) > MAX_NAME] == []


def test_a_test_name_states_no_guarantee_and_no_section() -> None:
    """The markers state them. Nothing would keep a second statement in the name correct."""
    stated = re.compile(r"test_g\d+_|test_\d_\d_|_g\d+$|_\d(?:_\d){1,2}$|_fig(?:ure)?_\d+$")
    assert [test.place for test in all_tests() if stated.search(test.name)] == []


def test_the_tests_that_pages_and_the_makefile_name_are_there() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "Makefile"]
    named = {place for page in pages for place in re.findall(r"\btests/[\w/]+\.py::\w+", page.read_text())}
    assert named - {test.place for test in all_tests()} == set()
