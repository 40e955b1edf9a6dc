"""What a replay or a discarding of dead letters does, in sentences for the person who confirms it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from millwheel.client.dead_letters import Letter, LetterState
from millwheel.model.wording import counted
from millwheel.rpc.v1 import letter_pb2 as wire

__all__ = ["discard_effects", "grouped_refusals", "replay_effects"]


def replay_effects(letters: Sequence[Letter], present_code: str) -> list[str]:
    """Describe the replay of letters, none of which is refused. ``present_code``: the digest of the code that runs."""
    if not letters:
        return []
    effects = [f"Sends {counted(len(letters), 'record')} again, to {_by_computation(letters)}. Each takes effect once."]
    same = sum(1 for one in letters if one.content.code and one.content.code == present_code)
    if same:
        effects.append(
            f"{_some(same, len(letters))} failed with the code that runs now. A record fails again, and becomes a new "
            "letter, unless what its hook depends on has changed."
        )
    begun = sum(1 for one in letters if one.state is LetterState.IN_REPLAY)
    if begun:
        effects.append(f"The replay of {_some(begun, len(letters)).lower()} has begun before, and is completed.")
    effects.append("A record behind the low watermark is late: its computation's `late=` says what becomes of it.")
    return effects


def discard_effects(letters: Sequence[Letter], also_in_replay: bool) -> list[str]:
    """Describe the discarding of letters that it takes."""
    if not letters:
        return []
    effects = [
        f"Gives {counted(len(letters), 'letter')} up for good, of {_by_computation(letters)}. No record is sent again."
    ]
    begun = sum(1 for one in letters if one.state is LetterState.IN_REPLAY)
    if begun and also_in_replay:
        effects.append(
            f"The replay of {_some(begun, len(letters)).lower()} has begun: the record may have taken effect, or may "
            "still do so."
        )
    effects.append("The log still keeps the letters for its retention, in the state `discarded`.")
    return effects


def grouped_refusals(reasons: Mapping[int, str]) -> list[wire.RefusedLetters]:
    """Return the refused letters, together by their reasons."""
    groups: dict[str, list[int]] = {}
    for offset, reason in sorted(reasons.items()):
        groups.setdefault(reason, []).append(offset)
    return [wire.RefusedLetters(reason=reason, ids=offsets) for reason, offsets in groups.items()]


def _by_computation(letters: Iterable[Letter]) -> str:
    counts = Counter(one.content.computation for one in letters)
    return ", ".join(f"{name} ({count:,})" for name, count in sorted(counts.items()))


def _some(count: int, of: int) -> str:
    return f"All {count:,}" if count == of and count > 1 else "It" if of == 1 else f"{count:,} of them"
