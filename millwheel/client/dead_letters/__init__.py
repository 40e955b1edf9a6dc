"""The dead letters of a topology: list, show, replay and discard them."""

from millwheel.client.dead_letters.letters import Letter, LetterFilter, LetterPage
from millwheel.client.dead_letters.reports import DiscardReport, ReplayReport
from millwheel.client.dead_letters.service import DeadLetters
from millwheel.client.dead_letters.states import LetterStates
from millwheel.model.letters import LetterState

__all__ = [
    "DeadLetters",
    "DiscardReport",
    "Letter",
    "LetterFilter",
    "LetterPage",
    "LetterState",
    "LetterStates",
    "ReplayReport",
]
