"""Steps that a stream does not have, and what to call first. The error says it, in place of a bare AttributeError."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

__all__ = ["NAMES_ELSEWHERE", "ORDERED_STEPS", "STATEFUL_STEPS", "STATELESS_STEPS", "MissingSteps"]

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

STATELESS_STEPS: Final = (
    "filter",
    "flat_map",
    "key_by",
    "map",
    "named",
    "only",
    "peek",
    "sample",
    "select",
    "split",
    "union",
)
"""The steps that only a stream without a key has."""

NAMES_ELSEWHERE: Final = {
    "addsink": "to('name', sink) (docs/connectors.md)",
    "allowedlateness": "allowed_lateness= of the step that follows window(...)",
    "apply": "process, or window(...).cogroup",
    "assigntimestampsandwatermarks": "an injector, which gives timestamps and watermarks (docs/injectors.md)",
    "branch": "split, or filter",
    "cogroupbykey": "key_by(...).window(...).cogroup",
    "connect": "join, join_latest, join_as_of or join_within after key_by, or join_broadcast",
    "count": "aggregate('name', agg.count())",
    "evictor": "a process step with a state of its own",
    "flatmapvalues": "flat_map before key_by",
    "fold": "update",
    "foreach": "peek, or subscribe to the log of a stream",
    "getsideoutput": "topology.stream('name', Type)",
    "groupby": "key_by",
    "intervaljoin": "join_within",
    "mapvalues": "map before key_by, or after the step that follows",
    "print": "peek(print)",
    "rebalance": "nothing, because keys are spread over the workers by themselves",
    "reduce": "update after key_by, or aggregate with functions of agg, such as agg.sum('field')",
    "setparallelism": "nothing, because keys are spread over the workers by themselves; enrich has concurrency=",
    "sideoutputlatedata": "too_late= of the step that follows window(...)",
    "sinkto": "to('name', sink) (docs/connectors.md)",
    "sum": "aggregate('name', agg.sum('field'))",
    "trigger": "early=windows.every(...) or windows.each_change() of aggregate",
    "uid": "the name of a step as its first argument: its state is kept under it",
    "windowall": "key_by(mw.everything).window(...)",
    "windowby": "window",
}
"""Methods of Flink, Beam, Kafka Streams and Bytewax, in small letters without ``_``, and what to write here."""
_OF_BOTH: Final = ("enrich", "join_broadcast", "to")
"""The steps of streams with and without a key."""
_OURS: Final = {name.replace("_", ""): name for name in (*STATEFUL_STEPS, *STATELESS_STEPS, *_OF_BOTH)}


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
    plain = name.lower().replace("_", "")
    if here := NAMES_ELSEWHERE.get(plain) or (name not in _OURS.values() and _OURS.get(plain)):
        return f"{kind} has no {name}: write {here}"
    if name in STATELESS_STEPS:
        return f"{kind} has no {name}: {name} needs no key, so call it before key_by or after the step that follows"
    if name not in STATEFUL_STEPS and name not in _OF_BOTH:
        return f"{kind!r} object has no attribute {name!r}"
    if kind.endswith("WindowedStream"):
        return f"{kind} has no {name}: a step such as aggregate follows window, and {name} may follow that"
    if kind == "Stream":
        return f"{kind} has no {name}: key_by first, such as key_by('user').{name}(...), because {name} works by key"
    return (
        f"{kind} has no {name}: ordered_by_time orders the records for the step that follows, which is one of "
        f"{', '.join(ORDERED_STEPS)}. Without ordered_by_time, {name} can follow key_by"
    )
