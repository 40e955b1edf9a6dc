"""The options of ``spark.read`` and ``spark.readStream``: parses and checks the values. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from millwheel.client.control import DEFAULT_ADDRESS
from millwheel.injectors.spark.errors import OptionError
from millwheel.injectors.spark.options import (
    parse_address,
    parse_boolean,
    parse_column,
    parse_seconds,
    parse_stream,
    parse_values,
)
from millwheel.model.time import from_datetime

__all__ = ["ReadingOptions", "StartingPlace", "check_streaming", "parse_read_options"]


@dataclass(frozen=True, slots=True)
class StartingPlace:
    """Where reading begins: at an offset, at the first record since a time in microseconds, or at the log's end.

    Neither of them: at the oldest record.
    """

    offset: int | None = None
    since: int | None = None
    latest: bool = False


@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """The parsed options. ``patience`` is in seconds. One of ``stream`` and ``state`` is set."""

    stream: str = ""
    state: str = ""
    address: str = DEFAULT_ADDRESS
    patience: float = 60.0
    offset_column: str = ""
    timestamp_column: str = ""
    starting_offset: StartingPlace = StartingPlace()
    ending_offset: int | None = None
    max_records_per_batch: int = 0
    """Of a micro-batch. 0: no limit."""
    records_per_task: int = 100_000
    fail_on_data_loss: bool = True


def parse_read_options(given: Mapping[str, str]) -> ReadingOptions:
    """Parse options as Spark passes them.

    Raises:
        OptionError: An option is invalid. The error names it, and says what is allowed.
    """
    values = parse_values(given, _PARSERS)
    if ("stream" in values) == ("state" in values):
        raise OptionError("stream", "is missing: a stream as TOPOLOGY/STREAM, or else option 'state'")
    options = ReadingOptions(**values)
    for name in values if options.state else ():
        if name not in _OF_STATES:
            raise OptionError(name, "is for streams, and not for states")
    return options


def check_streaming(options: ReadingOptions) -> None:
    """Raise OptionError for an option that ``readStream`` does not take."""
    if options.state:
        raise OptionError("state", "is for spark.read: states are no stream")
    if options.ending_offset is not None:
        raise OptionError("ending_offset", "is for spark.read: a streaming query has no end")


def _state(text: str) -> str:
    if not re.fullmatch(r"[^/]+/[^/]+", text):
        raise ValueError("it takes TOPOLOGY/COMPUTATION")
    return text


def _begin(text: str) -> StartingPlace:
    word = text.lower()
    if word in ("earliest", "latest"):
        return StartingPlace(latest=word == "latest")
    if text.isdecimal() and text.isascii():
        return StartingPlace(offset=_offset(text))
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return StartingPlace(since=from_datetime(moment))
    except ValueError:
        pass
    raise ValueError("it takes earliest, latest, an offset, or a time with its zone such as 2026-11-26T12:00:00+00:00")


def _offset(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise ValueError("it takes an offset: 0, 1, 2, ...")
    return int(text)


def _count(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,8}", text):
        raise ValueError("it takes a number of records: 1, 2, 3, ... up to 999999999")
    return int(text)


_OF_STATES: Final = frozenset({"state", "address", "patience"})
_PARSERS: Final[Mapping[str, Callable[[str], Any]]] = MappingProxyType(
    {
        "address": parse_address,
        "stream": parse_stream,
        "state": _state,
        "offset_column": parse_column,
        "timestamp_column": parse_column,
        "starting_offset": _begin,
        "ending_offset": _offset,
        "max_records_per_batch": _count,
        "records_per_task": _count,
        "fail_on_data_loss": parse_boolean,
        "patience": parse_seconds,
    }
)
