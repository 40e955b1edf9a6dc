"""The sink's options: parses and checks the values of ``.option(name, value)``. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final

from millwheel.client.control import DEFAULT_ADDRESS
from millwheel.client.injector.likelihood import any_timestamp_default
from millwheel.injectors.spark.errors import OptionError, listed
from millwheel.model.stream_names import is_valid
from millwheel.sdk.errors import did_you_mean

__all__ = [
    "SinkOptions",
    "parse_address",
    "parse_boolean",
    "parse_column",
    "parse_duration",
    "parse_options",
    "parse_seconds",
    "parse_stream",
    "parse_values",
]

_MICROSECONDS: Final = MappingProxyType(
    {
        "microsecond": 1,
        "millisecond": 1_000,
        "second": 1_000_000,
        "minute": 60_000_000,
        "hour": 3_600_000_000,
        "day": 86_400_000_000,
        "week": 604_800_000_000,
    }
)
_TERM: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*")
_ADDRESS: Final = re.compile(r"(\[[^\s\]]+\]|[^\s:]+):(\d{1,5})")
_LONGEST: Final = 1 << 60
_SPARKS_OWN: Final = frozenset({"checkpointlocation"})
"""Spark's own options, which Spark also passes to the sink."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The parsed options. Times are in microseconds, ``patience`` is in seconds."""

    stream: str
    id_column: str
    timestamp_column: str
    address: str = DEFAULT_ADDRESS
    watermark_column: str | None = None
    allowed_delay: int = 0
    process: str = "spark"
    query: str | None = None
    batch: int = 0
    end_of_input: bool = False
    patience: float = 60.0
    any_timestamp: bool = field(default_factory=any_timestamp_default)

    @property
    def watermark_source(self) -> str:
        """The column that determines the watermark."""
        return self.watermark_column or self.timestamp_column

    def scope(self, query: str) -> str:
        """The name of the batches of ``query`` into this stream, for receivers and the master.

        The name contains the stream, because a program may write a query's batches to two streams. Each stream then has
        its own cursor.
        """
        return f"{query}/{self.stream}"


def parse_options(given: Mapping[str, str]) -> SinkOptions:
    """Parse options as Spark passes them. The case of option names does not matter, as everywhere in Spark.

    Raises:
        OptionError: An option is invalid. The error names it, and says what is allowed.
    """
    values = parse_values(given, _PARSERS)
    for name, meaning in _REQUIRED.items():
        if name not in values:
            raise OptionError(name, f"is missing: {meaning}")
    return SinkOptions(**values)


def parse_values(given: Mapping[str, str], parsers: Mapping[str, Callable[[str], Any]]) -> dict[str, Any]:
    """Parse each option by the parser of its name, which raises ValueError for an invalid value.

    Raises:
        OptionError: An option has no parser, or an invalid value.
    """
    values: dict[str, Any] = {}
    for spelled, text in given.items():
        name = spelled.lower()
        if name in _SPARKS_OWN:
            continue
        parse = parsers.get(name)
        if parse is None:
            raise OptionError(spelled, f"is unknown{did_you_mean(name, [*parsers])}: it takes {listed(parsers)}")
        try:
            values[name] = parse(text)
        except ValueError as error:
            raise OptionError(spelled, f"is {text!r}: {error}") from error
    return values


def parse_duration(text: str) -> int:
    """Convert ``"22 hours"``, ``"1 day 2 hours"``, ``"1.5 seconds"`` or ``"0 seconds"`` to microseconds. ValueError."""
    rest, total = text.strip().lower(), Decimal(0)
    if not rest:
        raise ValueError(_DURATION)
    while rest:
        term = _TERM.match(rest)
        unit = None if term is None else _MICROSECONDS.get(term[2].removesuffix("s"))
        if term is None or unit is None:
            raise ValueError(_DURATION)
        total += Decimal(term[1]) * unit
        rest = rest[term.end() :]
    if total > _LONGEST:
        raise ValueError("a duration is shorter than that")
    return int(total)


_DURATION: Final = f"it takes a duration such as '22 hours' or '1 day 30 minutes' (units: {listed(_MICROSECONDS)}s)"


def _name(text: str) -> str:
    if not text or "/" in text:
        raise ValueError("it takes a name without a slash")
    return text


def parse_stream(text: str) -> str:
    """The name of a stream. ValueError: the text is none."""
    if not is_valid(text):
        raise ValueError("it takes STREAM or TOPOLOGY/STREAM")
    return text


def parse_column(text: str) -> str:
    """The name of a column. ValueError: the text is empty."""
    if not text:
        raise ValueError("it takes the name of a column")
    return text


def parse_address(text: str) -> str:
    """The addresses of masters. ValueError: the text has none."""
    for one in text.split(","):
        found = _ADDRESS.fullmatch(one.strip())
        if found is None or not 0 < int(found[2]) < 65_536:
            raise ValueError(f"it takes host:port, such as {DEFAULT_ADDRESS}, or several with commas between")
    return text


def parse_boolean(text: str) -> bool:
    """A truth value. ValueError: the text is none."""
    known = {"true": True, "false": False}
    if text.lower() not in known:
        raise ValueError("it takes true or false")
    return known[text.lower()]


def _batch(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise ValueError("it takes the number of a batch: 0, 1, 2, ...")
    return int(text)


def parse_seconds(text: str) -> float:
    """A duration in seconds. ValueError: the text is none."""
    return parse_duration(text) / 1e6


_REQUIRED: Final = MappingProxyType(
    {
        "stream": "the stream that the rows become records of, as TOPOLOGY/STREAM",
        "id_column": "the column that names each row: a string, a whole number or binary, unique within its batch",
        "timestamp_column": "the column with each row's event time: a timestamp, or whole microseconds",
    }
)
_PARSERS: Final[Mapping[str, Callable[[str], Any]]] = MappingProxyType(
    {
        "address": parse_address,
        "stream": parse_stream,
        "id_column": parse_column,
        "timestamp_column": parse_column,
        "watermark_column": parse_column,
        "allowed_delay": parse_duration,
        "process": _name,
        "query": parse_column,
        "batch": _batch,
        "end_of_input": parse_boolean,
        "patience": parse_seconds,
        "any_timestamp": parse_boolean,
    }
)
