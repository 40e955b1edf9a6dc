"""Steps that a stream does not have, and what to call first. The error says it, in place of a bare AttributeError."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

__all__ = ["ORDERED_STEPS", "STATEFUL_STEPS", "STATELESS_STEPS", "MissingSteps"]

ORDERED_STEPS: Final = (
    "aggregate",
    "changes",
    "count_window",
    "deduplicate",
    "latest",
    "process",
    "throttle",
    "timeout",
    "until",
    "update",
)
"""The steps of a keyed stream that may follow ``ordered_by_time``."""

STATEFUL_STEPS: Final = (
    *ORDERED_STEPS,
    "complete",
    "join",
    "join_as_of",
    "join_latest",
    "join_tables",
    "join_within",
    "ordered_by_time",
    "window",
)
"""The steps that only a keyed stream has."""

STATELESS_STEPS: Final = ("filter", "flat_map", "key_by", "map", "named", "only", "peek", "sample", "split", "union")
"""The steps that only a stream without a key has."""


class MissingSteps:
    """A base of streams. A step that the stream does not have raises an error that says what to call first."""

    if not TYPE_CHECKING:  # a type checker must find such a call

        def __getattr__(self, name: str) -> NoReturn:
            """Called only for what the stream does not have.

            Raises:
                AttributeError: As for any missing attribute, so that ``hasattr`` works.
            """
            raise AttributeError(_advice(self, name), name=name, obj=self)


def _advice(stream: Any, name: str) -> str:
    kind = type(stream).__name__
    if name in STATELESS_STEPS:
        return f"{kind} has no {name}: {name} needs no key, so call it before key_by or after the step that follows"
    if name not in STATEFUL_STEPS and name not in ("enrich", "join_broadcast"):
        return f"{kind!r} object has no attribute {name!r}"
    if kind == "Stream":
        return f"{kind} has no {name}: key_by first, such as key_by('user').{name}(...), because {name} works by key"
    return (
        f"{kind} has no {name}: ordered_by_time orders the records for the step that follows, which is one of "
        f"{', '.join(ORDERED_STEPS)}. Without ordered_by_time, {name} can follow key_by"
    )
