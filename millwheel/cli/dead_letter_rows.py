"""Dead letters, and what became of them, as the commands of ``millwheel dead-letter`` print them."""

from __future__ import annotations

from typing import Any

import msgspec

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


def listed_letter(letter: Letter) -> dict[str, Any]:
    """Describe a letter for a list."""
    content = letter.content
    return {
        "id": letter.offset,
        "state": _state_name(letter.state),
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


def shown_letter(letter: Letter, value: Any) -> dict[str, Any]:
    """Describe a letter with everything. ``value``: its record, decoded."""
    content = letter.content
    return {
        **listed_letter(letter),
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
    return [row["id"], row["failed_at"], row["computation"], row["key"], row["state"], row["attempts"], short]


def print_letter(shown: dict[str, Any]) -> None:
    """Print a letter for people."""
    work = f"timer {shown['timer_tag']!r}" if shown["stream"] is None else f"record of {shown['stream']}"
    lines = {
        "letter": f"{shown['id']}, {shown['state']}",
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
    counts = (f"{states.count(state):,} {_state_name(state).replace('-', ' ')}" for state in LetterState)
    return f"kept: {', '.join(counts)}"


def plain_replay(report: ReplayReport) -> dict[str, Any]:
    """Describe what became of letters."""
    return {
        "replayed": report.replayed,
        "elsewhere": report.elsewhere,
        "refused": [{"id": one.offset, "reason": one.reason} for one in report.refused],
        "unconfirmed": report.unconfirmed,
        "why_unconfirmed": report.why_unconfirmed or None,
    }


def replay_text(report: ReplayReport) -> str:
    """What became of letters, in one line."""
    parts = [f"{counted(len(report.replayed), 'letter')} replayed"]
    if report.elsewhere:
        parts.append(f"{len(report.elsewhere):,} handled by others meanwhile")
    if report.refused:
        parts.append(f"{len(report.refused):,} cannot be replayed")
    if report.unconfirmed:
        parts.append(f"{len(report.unconfirmed):,} not confirmed")
    return ", ".join(parts)


def plain_discard(report: DiscardReport) -> dict[str, Any]:
    """Describe what became of letters."""
    return {"discarded": report.discarded, "in_replay": report.in_replay, "elsewhere": report.elsewhere}


def discard_text(report: DiscardReport) -> str:
    """What became of letters, in one line."""
    parts = [f"{counted(len(report.discarded), 'letter')} discarded"]
    if report.elsewhere:
        parts.append(f"{len(report.elsewhere):,} handled by others meanwhile")
    if report.in_replay:
        parts.append(f"{len(report.in_replay):,} in replay")
    return ", ".join(parts)


def _state_name(state: LetterState) -> str:
    return state.name.lower().replace("_", "-")
