"""What is recorded of the forms, in ``golden/``: the bytes of each stored form, and a line for each field and call.

``format-N.json`` has, for each form of format N, the bytes that its versions have written, the newest last. They are
never changed and never removed: clusters have such bytes. ``messages.txt`` has the lines of ``messages.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from millwheel.model.formats import NEWEST_FORMAT, OLDEST_FORMAT

from . import journals, messages, snapshots, values
from .forms import by_name

_FOLDER: Final = Path(__file__).parent / "golden"
_LINES: Final = _FOLDER / "messages.txt"

FORMS: Final = by_name((*journals.FORMS, *values.FORMS, *messages.FORMS, *snapshots.FORMS))


def _path(number: int) -> Path:
    return _FOLDER / f"format-{number}.json"


def recorded(number: int) -> dict[str, list[bytes]]:
    """The recorded bytes of each form in a format, the oldest first."""
    path = _path(number)
    stored = msgspec.json.decode(path.read_bytes(), type=dict[str, list[str]]) if path.exists() else {}
    return {name: [bytes.fromhex(text) for text in texts] for name, texts in stored.items()}


def recorded_lines() -> list[str]:
    """The recorded lines of fields and calls."""
    return _LINES.read_text().splitlines() if _LINES.exists() else []


def missing() -> list[str]:
    """The forms that today's code does not write as the newest bytes that are recorded for the newest format."""
    known = recorded(NEWEST_FORMAT)
    return [name for name, form in FORMS.items() if known.get(name, [b""])[-1] != form.write(form.value)]


def changed_lines() -> list[str]:
    """The recorded lines that no longer hold, and whose numbers are not reserved. An older process relies on them."""
    present, reserved = set(messages.lines()), messages.reserved_numbers()
    return [line for line in recorded_lines() if line not in present and line.partition(":")[0] not in reserved]


def write() -> list[str]:
    """Record what is not recorded yet. Return the names of the forms whose bytes are new."""
    known = recorded(NEWEST_FORMAT)
    new = missing()
    for name in new:
        known.setdefault(name, []).append(FORMS[name].write(FORMS[name].value))
    texts = {name: [one.hex() for one in known[name]] for name in sorted(known)}
    _path(NEWEST_FORMAT).write_bytes(msgspec.json.format(msgspec.json.encode(texts), indent=1) + b"\n")
    lines = {*recorded_lines(), *messages.lines()} if changed_lines() else set(messages.lines())
    _LINES.write_text("".join(f"{line}\n" for line in sorted(lines)))
    return new


ALL_FORMATS: Final = range(OLDEST_FORMAT, NEWEST_FORMAT + 1)
