"""Keys that are blocked because one of their hooks raises: their number, and the errors of the oldest.

This is for operators only. No decision of the core depends on it. It is cached state of one owner and is not stored.
The next owner counts from its own first failed attempt.
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
"""Maximum failing keys of one interval with the error's text. Further keys have only its kind."""

_MAX_TEXT: Final = 1_000
_MAX_KINDS: Final = 100
_OWN_MODULES: Final = ("millwheel.sdk.", "millwheel.worker.")


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """The common properties of errors of one kind: the type, and the line of the user's code that raised them."""

    error: str
    place: str
    """``file.py:12 in function``. Empty: no user code ran."""
    permanent: bool
    """Whether no attempt can succeed before the code is changed."""


class ErrorKinds:
    """Finds the kind of an error by its traceback. Equal kinds are one object."""

    def __init__(self) -> None:
        self._known: dict[tuple[type, CodeType | None, int, bool], ErrorKind] = {}

    def kind_of(self, error: BaseException) -> ErrorKind:
        """The kind of ``error``."""
        code, line, in_sdk = _raised_at(error)
        # A compiled SDK raises a TypeError for an argument of a wrong type.
        name = type(error), code, line, is_permanent(error) or (in_sdk and isinstance(error, TypeError))
        found = self._known.get(name)
        if found is None:
            if len(self._known) >= _MAX_KINDS:
                self._known.clear()
            place = "" if code is None else f"{Path(code.co_filename).name}:{line} in {code.co_name}"
            found = self._known[name] = ErrorKind(type(error).__name__, place, name[3])
        return found


def _raised_at(error: BaseException) -> tuple[CodeType | None, int, bool]:
    """The innermost line outside the SDK and the worker, and whether the SDK raised.

    At that line the user's code raised, or made the call that raised.
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
    """A key whose hook raises.

    Times are wall-clock times in microseconds, but ``next_attempt`` is a time of ``elapsed``.
    """

    key: bytes
    hook: str
    work: str
    """The work of the hook: "record of stream 'in' at …", or "timer 't' at …"."""
    kind: ErrorKind
    text: str
    """The error's message, shortened. Empty for keys beyond the first MAX_DETAILED."""
    attempts: int
    since: int
    last: int
    next_attempt: int | None = None
    """When the next attempt is due. None: the interval has stopped, or the work was given up."""
    letter: str = ""
    """Why the work was not given up although its attempts are used up, and what to do. Empty in all other cases.

    A consumer has no key for its dead letter, or another topology's consumer has none for its production.
    """

    @property
    def letter_in_short(self) -> str:
        """The beginning of ``letter``, without the consumer and what to do."""
        return self.letter.partition(" at computation ")[0].partition(":")[0]


class FailingKeys:
    """The failures of one interval since its owner took over.

    Invariant: ``blocked`` is the number of keys whose ``BlockedKey.failure`` is set. Only ``Failures`` sets and clears
    it, and calls ``failed`` and ``cleared`` with it.
    """

    def __init__(self) -> None:
        self.total = 0
        """The number of failed attempts."""
        self.blocked = 0
        self.last: KeyFailure | None = None
        """The newest failure of work that has not succeeded since: its key is blocked, or the work was given up."""
        self._given_up: KeyFailure | None = None
        """The newest failure of work that was given up."""
        self._detailed: dict[bytes, KeyFailure] = {}

    def failed(self, before: KeyFailure | None, now: KeyFailure) -> None:
        """Count a failed attempt. ``before`` is the record of the key's preceding failure, if any."""
        self.total += 1
        self.last = now
        if before is None:
            self.blocked += 1
        if now.key in self._detailed or len(self._detailed) < MAX_DETAILED:
            now.text = now.text[:_MAX_TEXT]
            self._detailed[now.key] = now
        else:
            now.text = now.letter = ""

    def cleared(self, failure: KeyFailure) -> None:
        """The key is no longer blocked by its failure: its work has succeeded or was given up."""
        self.blocked -= 1
        self._detailed.pop(failure.key, None)
        if failure.next_attempt is None:
            self._given_up = failure
        elif failure is self.last:
            self.last = self._given_up

    def oldest(self, count: int) -> list[KeyFailure]:
        """Up to ``count`` blocked keys, those with the longest failures first."""
        return sorted(self._detailed.values(), key=lambda one: one.since)[:count]
