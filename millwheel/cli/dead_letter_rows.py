"""Dead letters, and what became of them, as the commands of ``millwheel dead-letter`` print them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import Any

import msgspec

from millwheel.cli.letter_ids import letter_id_text
from millwheel.client.dead_letters import DiscardReport, Letter, LetterState, LetterStates, ReplayReport
from millwheel.model.time import Timestamp, format_timestamp
from millwheel.model.wording import counted

__all__ = [
    "counts_text",
    "discard_text",
    "listed_letter",
    "plain_discard",
    "plain_replay",
    "print_letter",
    "replay_text",
    "shown_letter",
    "table_row",
]

_ERROR_WIDTH = 100


def listed_letter(letter: Letter, log: int) -> dict[str, Any]:
    """Describe a letter for a list. ``log``: the number of its log."""
    content = letter.content
    return {
        "id": letter.offset,
        "log": log,
        "state": letter.state.word,
        "failed_at": format_timestamp(Timestamp(letter.failed_at)),
        "failed_at_us": letter.failed_at,
        "computation": content.computation,
        "key": content.key,
        "stream": letter.stream or None,
        "timer_tag": content.timer_tag if letter.is_timer else None,
        "timestamp": format_timestamp(Timestamp(content.timestamp)),
        "timestamp_us": content.timestamp,
        "attempts": content.attempts,
        "error": content.error,
        "replay_of": content.replay_of,
    }


def shown_letter(letter: Letter, log: int, value: Any) -> dict[str, Any]:
    """Describe a letter with everything. ``log``: the number of its log. ``value``: its record, decoded."""
    content = letter.content
    return {
        **listed_letter(letter, log),
        "value": None if letter.is_timer else value,
        "delivery_key": content.delivery_key.decode("utf-8", "backslashreplace"),
        "incarnation": content.incarnation or None,
        "code_digest": content.code or None,
        "traceback": content.traceback,
    }


def table_row(row: dict[str, Any]) -> list[object]:
    """The cells of a listed letter."""
    error = " ".join(row["error"].split())
    short = error if len(error) <= _ERROR_WIDTH else f"{error[: _ERROR_WIDTH - 1]}…"
    return [
        letter_id_text(row["id"], row["log"]),
        row["failed_at"],
        row["computation"],
        row["key"],
        row["state"],
        row["attempts"],
        short,
    ]


def print_letter(shown: dict[str, Any]) -> None:
    """Print a letter for people."""
    work = f"timer {shown['timer_tag']!r}" if shown["stream"] is None else f"record of {shown['stream']}"
    lines = {
        "letter": f"{letter_id_text(shown['id'], shown['log'])}, {shown['state']}",
        "failed at": f"{shown['failed_at']}, after {counted(shown['attempts'], 'attempt')}",
        "computation": shown["computation"],
        "key": shown["key"],
        "step's key": shown["delivery_key"] if shown["delivery_key"] != shown["key"] else None,
        "work": f"{work} at {shown['timestamp']}",
        "value": None if shown["stream"] is None else msgspec.json.encode(shown["value"]).decode(),
        "code": shown["code_digest"],
        "replay of": shown["replay_of"],
        "error": shown["error"],
    }
    for name, text in lines.items():
        if text is not None:
            print(f"{name:<12} {text}")
    print(f"\n{shown['traceback'].rstrip()}")


def counts_text(states: LetterStates) -> str:
    """How many letters have each state."""
    counts = (f"{states.count(state):,} {state.word.replace('-', ' ')}" for state in LetterState)
    return f"kept: {', '.join(counts)}"


def plain_replay(report: ReplayReport, failed_again: Sequence[int] = ()) -> dict[str, Any]:
    """Describe what became of letters. ``failed_again``: those of the replayed ones that have another letter."""
    return {
        "replayed": report.replayed,
        "failed_again": list(failed_again),
        "elsewhere": report.elsewhere,
        "refused": [{"id": one.offset, "reason": one.reason} for one in report.refused],
        "unconfirmed": report.unconfirmed,
        "why_unconfirmed": report.why_unconfirmed or None,
    }


def replay_text(report: ReplayReport) -> str:
    """What became of letters, in one line."""
    return _outcome(
        "replayed",
        report.replayed,
        report.elsewhere,
        {"cannot be replayed": report.refused, "not confirmed": report.unconfirmed},
    )


def plain_discard(report: DiscardReport) -> dict[str, Any]:
    """Describe what became of letters."""
    return {"discarded": report.discarded, "in_replay": report.in_replay, "elsewhere": report.elsewhere}


def discard_text(report: DiscardReport) -> str:
    """What became of letters, in one line."""
    return _outcome("discarded", report.discarded, report.elsewhere, {"in replay": report.in_replay})


def _outcome(done: str, letters: Sized, elsewhere: Sized, rest: Mapping[str, Sized]) -> str:
    parts = [f"{counted(len(letters), 'letter')} {done}"]
    others = {"handled by others meanwhile": elsewhere, **rest}
    return ", ".join(parts + [f"{len(found):,} {what}" for what, found in others.items() if found])
