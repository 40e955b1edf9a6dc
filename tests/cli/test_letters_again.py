"""A replay says which records have failed again: the letters that came behind those that were replayed."""

from __future__ import annotations

from collections.abc import Sequence

from millwheel.cli.letters_again import again_text, failed_again
from millwheel.client.dead_letters import Letter, LetterFilter, LetterPage, LetterState
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.sdk.dead_letters import DeadLetter


class Log:
    """The letters that are there at each look. Each is given by the letter that it repeats."""

    def __init__(self, *looks: Sequence[int | None]) -> None:
        self.looks = list(looks)

    async def page(self, wanted: LetterFilter, first: int = 0, limit: int = 100) -> LetterPage:
        assert wanted.states == frozenset(LetterState)
        if not self.looks:
            raise RequestError(FailureCode.UNAVAILABLE, "the log is being moved")
        found = self.looks.pop(0)
        letters = [
            Letter(
                "shop",
                first + at,
                DeadLetter("bill", "k", "sales", 0, b"", "", 1, "no", "", replay_of=one),
                LetterState.WAITING,
            )
            for at, one in enumerate(found)
        ]
        return LetterPage(letters, None)


async def test_letters_that_come_late_are_found() -> None:
    log = Log([], [4, None], [4, None, 7])
    assert await failed_again(log, [4, 5, 7], (0.0, 0.0, 0.0)) == [4, 7]
    assert not log.looks


async def test_it_looks_no_more_once_all_have_failed() -> None:
    log = Log([5, 4], [])
    assert await failed_again(log, [4, 5], (0.0, 0.0, 0.0)) == [4, 5]
    assert len(log.looks) == 1


async def test_a_log_that_is_away_leaves_the_report() -> None:
    """Regression guard: the replay is done, and an error of a look must not hide that."""
    assert await failed_again(Log([4]), [4, 5], (0.0, 0.0)) == [4]
    assert await failed_again(Log(), []) == []


def test_the_version_is_named() -> None:
    text = again_text("shop", 38, 2)
    assert text.startswith("38 letters failed again with the code that runs (version 2): mend it")
