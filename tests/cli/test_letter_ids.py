"""Ids of dead letters on the command line name their log."""

from __future__ import annotations

import pytest
import typer

from millwheel.cli.letter_ids import LetterIds, letter_id_text, parse_letter_ids


def test_what_list_shows_is_read_again() -> None:
    texts = [letter_id_text(offset, 23) for offset in (17, 0, 17)]
    assert parse_letter_ids(texts, "ID", bound=True) == LetterIds(frozenset({0, 17}), 23)
    assert parse_letter_ids(["4"], "ID", bound=False) == LetterIds(frozenset({4}), 0)
    assert parse_letter_ids([], "ID", bound=True) == LetterIds(frozenset(), 0)


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["17"], "of which log"),
        (["1@2", "1@3"], "different logs"),
        (["-1@2"], "no letter"),
        (["1@"], "no letter"),
        (["@2"], "no letter"),
        (["x@2"], "no letter"),
    ],
)
def test_other_texts_are_refused(texts: list[str], why: str) -> None:
    with pytest.raises(typer.BadParameter, match=why):
        parse_letter_ids(texts, "ID", bound=True)
