"""How a source becomes two computations of a topology."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from millwheel.connectors.pacing import Timing
from millwheel.connectors.reading import FindSplits, ReadSplits
from millwheel.connectors.source import Source
from millwheel.model.time import Duration, Timestamp, seconds
from millwheel.sdk.declarations import NO_DURATION
from millwheel.sdk.errors import UsageError
from millwheel.sdk.keys import key
from millwheel.sdk.topology import TopologyGraph
from millwheel.sdk.typeinfo import field_of, generic_arguments
from millwheel.sdk.validation import MAX_NAME

__all__ = ["declare_source"]

_FIND_EVERY: Final = seconds(1)
_MAX_IDENTITY: Final = 512
_HIGHEST_RATE: Final = 1_000_000_000
_MAX_SOURCE_NAME: Final = MAX_NAME - len("-splits")
"""The most characters of a stream's name that computations are named after."""


def declare_source(
    topology: TopologyGraph,
    name: str,
    record_type: Any,
    source: Source[Any, Any],
    *,
    timestamp: str | Callable[[Any], Timestamp | datetime] | None = None,
    out_of_order: Duration = NO_DURATION,
    idle_after: Duration | None = None,
    find_every: Duration = _FIND_EVERY,
    bad: str | None = None,
    records_per_second: float | None = None,
    any_timestamp: bool = False,
    allowed_skew: Duration | None = None,
) -> None:
    """Add the computations that read ``source`` into the stream ``name``. The options: see ``Topology.source``.

    Raises:
        UsageError: The source, its identity or an option cannot be used.
    """
    _check(name, record_type, source, timestamp)
    durations = (("out_of_order", out_of_order, 0), ("idle_after", idle_after, 1), ("find_every", find_every, 1))
    _check_times(name, *durations, ("allowed_skew", allowed_skew, 1))
    _check_rate(name, records_per_second)
    identity = source.identity()
    if not isinstance(identity, str) or not 0 < len(identity) <= _MAX_IDENTITY:
        raise UsageError(
            f"{type(source).__name__}.identity() returns 1 to {_MAX_IDENTITY} characters, not {identity!r:.80}"
        )
    skew = _micros(allowed_skew)
    timing = Timing(
        int(out_of_order), _micros(idle_after), int(find_every), records_per_second, skew, bool(any_timestamp)
    )
    splits, called = f"{name}.splits", re.sub("[^a-z0-9]+", "-", name).strip("-")
    if len(called) > _MAX_SOURCE_NAME:
        raise UsageError(
            f"stream {name!r} names the computations {called}-splits and {called}-reader, which are too long: give it "
            f"{_MAX_SOURCE_NAME} characters at most"
        )
    topology.add(FindSplits(source, identity, splits, timing), name=f"{called}-splits", inputs={})
    position = (generic_arguments(type(source), Source) or (Any, Any))[1]
    reads = ReadSplits[position]  # type: ignore[valid-type]
    topology.add(
        reads(source, identity, name, record_type, timing, timestamp, bad),
        name=f"{called}-reader",
        inputs={splits: key("name")},
    )


def _micros(duration: Duration | None) -> int | None:
    return None if duration is None else int(duration)


def _check_times(name: str, *options: tuple[str, object, int]) -> None:
    """Raise UsageError for an option that is no duration of at least so many microseconds."""
    for option, value, least in options:
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise UsageError(
                f"source({name!r}) takes a Duration of at least {least} microseconds as {option}, not {value!r:.80}"
            )


def _check_rate(name: str, rate: object) -> None:
    """Raise UsageError for what is no rate of reads.

    A read gets up to 10,000 records, and the split then waits as long as the rate says. Below one record in a second,
    that would be days without a word.
    """
    if rate is None or (isinstance(rate, int | float) and not isinstance(rate, bool) and 1 <= rate <= _HIGHEST_RATE):
        return
    raise UsageError(
        f"source({name!r}) takes a number from 1 to {_HIGHEST_RATE:,} as records_per_second, not {rate!r:.80}"
    )


def _check(name: str, record_type: Any, source: object, timestamp: object) -> None:
    """Raise UsageError for what can never be read."""
    where = f"source({name!r})"
    if not isinstance(source, Source):
        made = f": write {source.__name__}(...)" if isinstance(source, type) and issubclass(source, Source) else ""
        raise UsageError(f"{where} reads an instance of a connectors.Source, not {source!r:.80}{made}")
    if timestamp is None or callable(timestamp):
        return
    if not isinstance(timestamp, str):
        raise UsageError(
            f"{where} takes the name of a field as timestamp, or a function of the value, not {timestamp!r:.80}"
        )
    fields = field_of(record_type, timestamp.partition(".")[0])
    if isinstance(fields, str):
        raise UsageError(f"{where}: the timestamp {timestamp!r} is no field of its records: {fields}")
