"""Keys that are blocked because a hook of theirs raises: how many there are, and what the oldest of them raise.

For operators alone: no decision of the core depends on it. It is soft state of one owner. A successor counts again,
from the first attempt that fails there.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Final

from millwheel.sdk.errors import is_permanent

__all__ = ["MAX_DETAILED", "ErrorKind", "ErrorKinds", "FailingKeys", "KeyFailure"]

MAX_DETAILED: Final = 1_000
"""Of as many failing keys of one interval the error's text is kept; of further ones only its kind."""

_MAX_TEXT: Final = 1_000
_MAX_KINDS: Final = 100
_OWN_MODULES: Final = ("millwheel.sdk.", "millwheel.worker.")


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """What errors of one kind have in common: the type, and the line of the user's code that raised it."""

    error: str
    place: str
    """``file.py:12 in function``; empty where no code of the user's ran."""
    permanent: bool
    """Whether another attempt cannot succeed before the code is changed."""


class ErrorKinds:
    """Finds the kind of an error, by its traceback. Equal kinds are one object."""

    def __init__(self) -> None:
        self._known: dict[tuple[type, CodeType | None, int, bool], ErrorKind] = {}

    def kind_of(self, error: BaseException) -> ErrorKind:
        """The kind of ``error``."""
        code, line, in_sdk = _raised_at(error)
        # A compiled SDK refuses an argument of another type by a TypeError.
        name = type(error), code, line, is_permanent(error) or (in_sdk and isinstance(error, TypeError))
        found = self._known.get(name)
        if found is None:
            if len(self._known) >= _MAX_KINDS:
                self._known.clear()
            place = "" if code is None else f"{Path(code.co_filename).name}:{line} in {code.co_name}"
            found = self._known[name] = ErrorKind(type(error).__name__, place, name[3])
        return found


def _raised_at(error: BaseException) -> tuple[CodeType | None, int, bool]:
    """The innermost line outside the SDK and the worker: where the user's code raised, or made a call that raised.

    And whether it was the SDK that raised.
    """
    code: CodeType | None = None
    at, module = 0, ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__", ""))
        if not module.startswith(_OWN_MODULES):
            code, at = frame.f_code, line
    return code, at, module.startswith("millwheel.sdk.")


@dataclass(slots=True)
class KeyFailure:
    """A key whose hook raises. Times are wall times in microseconds, but ``retry_at`` is one of ``elapsed``."""

    key: bytes
    hook: str
    work: str
    """What the hook ran for: "record of stream 'in' at …", or "timer 't' at …"."""
    kind: ErrorKind
    text: str
    """The error's message, cut; empty for a key beyond the first MAX_DETAILED."""
    attempts: int
    since: int
    last: int
    retry_at: int | None = None
    """When the next attempt is due; None: there is none, for the computation has stopped, or the work was given up."""


class FailingKeys:
    """The failures of one interval since its owner took over.

    Invariant: ``blocked`` is the number of keys whose ``ParkedKey.failure`` is set. ``Failures`` alone sets and clears
    that, and calls ``failed`` and ``cleared`` with it.
    """

    def __init__(self) -> None:
        self.total = 0
        """Attempts that failed."""
        self.blocked = 0
        self.last: KeyFailure | None = None
        """The newest failure, whether or not its key is blocked still."""
        self._detailed: dict[bytes, KeyFailure] = {}

    def failed(self, before: KeyFailure | None, now: KeyFailure) -> None:
        """An attempt failed; ``before`` is what was noted of the key's attempt before it."""
        self.total += 1
        self.last = now
        if before is None:
            self.blocked += 1
        if now.key in self._detailed or len(self._detailed) < MAX_DETAILED:
            now.text = now.text[:_MAX_TEXT]
            self._detailed[now.key] = now
        else:
            now.text = ""

    def cleared(self, failure: KeyFailure) -> None:
        """The key is not blocked by its failure any more."""
        self.blocked -= 1
        self._detailed.pop(failure.key, None)

    def oldest(self, count: int) -> list[KeyFailure]:
        """Up to ``count`` of the blocked keys, those first that have failed longest."""
        return sorted(self._detailed.values(), key=lambda one: one.since)[:count]
