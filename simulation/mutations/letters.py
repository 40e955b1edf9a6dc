"""Replays of dead letters: one batch at a time, begun before it is sent, confirmed by what the log says."""

from __future__ import annotations

from typing import Final

from millwheel.client.dead_letters.replaying import Replay
from millwheel.worker.log.letters import LetterMarks
from simulation.mutations.base import rewriting

__all__: list[str] = []

_WHY: Final = "the simulated people that replay letters are in one of thirty seeds; the test shows it in seconds"
_HISTORIES: Final = "tests/client/test_letter_replays.py::test_each_letter_takes_effect_at_most_once"

rewriting(
    "letters-in-a-batch-too-early",
    "G1",
    "a batch of letters begins only while no letter is in replay",
    LetterMarks,
    "if idle and self._counts[LetterState.IN_REPLAY]:",
    "if self._counts[LetterState.IN_REPLAY]:",
    seeds=1,
    test=_HISTORIES,
    why=_WHY,
)


rewriting(
    "discarded-letters-sent",
    "G1",
    "only letters that the log says are in replay are sent",
    Replay,
    "if begun.state(letter.offset) is LetterState.IN_REPLAY:",
    "if True:",
    seeds=1,
    test=_HISTORIES,
    why=_WHY,
)


rewriting(
    "letters-confirmed-without-ack",
    "G1",
    "a letter becomes replayed only after the ACK of its record",
    Replay,
    "await self._book.change(LetterAction.CONFIRM, acked)",
    "await self._book.change(LetterAction.CONFIRM, offsets)",
    seeds=1,
    test=_HISTORIES,
    why=_WHY,
)


rewriting(
    "acks-of-former-batches-believed",
    "G1",
    "a letter counts as replayed only if the log says so after the ACK",
    Replay,
    "if state is LetterState.REPLAYED and offset in mine:",
    "if offset in mine:",
    seeds=1,
    test="tests/client/test_letter_replays.py::test_an_ack_of_a_former_batch_is_no_replay",
    why=_WHY,
)
