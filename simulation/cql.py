"""A parser for the CQL statements of the product's Cassandra store: a simulated Cassandra executes the sent text.

It knows only the forms that the product uses. Any other form is an error, so that none is ignored silently.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Literal

from millwheel.store.cassandra.schema import MIGRATIONS

__all__ = ["Condition", "CqlTerm", "Schema", "Statement", "holds", "parsed", "schemas"]


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of a table that determine where a value is stored."""

    partition: tuple[str, ...]
    clustering: tuple[str, ...]
    static: frozenset[str]


@dataclass(frozen=True, slots=True)
class CqlTerm:
    """A literal number, or the bound value at ``index``."""

    index: int = -1
    literal: int = 0

    def of(self, values: Sequence[Any]) -> Any:
        """The term's value, given the bound ``values``."""
        return self.literal if self.index < 0 else values[self.index]


@dataclass(frozen=True, slots=True)
class Condition:
    """``column operator term``."""

    column: str
    operator: str
    term: CqlTerm


@dataclass(slots=True)
class Statement:
    """One statement. ``guard``: the condition that a lightweight transaction checks before it changes anything."""

    kind: Literal["select", "write", "delete"]
    table: str
    where: list[Condition] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    """Columns to read or to delete (none: whole rows)."""
    sets: list[tuple[str, CqlTerm]] = field(default_factory=list)
    marks_row: bool = False
    """An INSERT makes the row exist even if the row has no value."""
    stamp: CqlTerm | None = None
    guard: Literal["", "conditions", "exists", "not exists"] = ""
    conditions: list[Condition] = field(default_factory=list)
    grouped: bool = False
    limit: CqlTerm | None = None
    """The most rows of a SELECT."""


_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": lambda held, asked: held == asked,
    "<": lambda held, asked: held < asked,
    "<=": lambda held, asked: held <= asked,
    ">": lambda held, asked: held > asked,
    ">=": lambda held, asked: held >= asked,
    "IN": lambda held, asked: held in asked,
}


def holds(operator: str, held: Any, asked: Any) -> bool:
    """Whether a stored value meets a condition; an absent value (None) meets none."""
    return held is not None and bool(_OPERATORS[operator](held, asked))


_SELECT: Final = re.compile(
    r"SELECT (?P<columns>.+?) FROM (?P<table>\S+) WHERE (?P<where>.+?)"
    r"(?P<grouped> GROUP BY .+?)?(?: LIMIT (?P<limit>\S+))?"
)
_INSERT: Final = re.compile(
    r"INSERT INTO (?P<table>\S+) \((?P<columns>.+?)\) VALUES \((?P<values>.+?)\)"
    r"(?P<guard> IF NOT EXISTS)?(?: USING TIMESTAMP (?P<stamp>\S+))?(?: AND TTL \d+)?"
)
_UPDATE: Final = re.compile(r"UPDATE (?P<table>\S+) SET (?P<sets>.+?) WHERE (?P<where>.+?)(?: IF (?P<conditions>.+))?")
_DELETE: Final = re.compile(
    r"DELETE (?P<columns>.+? )?FROM (?P<table>\S+)(?: USING TIMESTAMP (?P<stamp>\S+))? WHERE (?P<where>.+?)"
    r"(?P<guard> IF EXISTS)?"
)
_CONDITION: Final = re.compile(r"(\w+) (=|<=|>=|<|>|IN) (\S+)")


class _Terms:
    """Numbers the bound values in the order in which they appear in the text."""

    def __init__(self) -> None:
        self._next = 0

    def read(self, text: str) -> CqlTerm:
        if text.strip() != "?":
            return CqlTerm(literal=int(text))
        self._next += 1
        return CqlTerm(index=self._next - 1)

    def conditions(self, text: str) -> Iterator[Condition]:
        for one in text.split(" AND "):
            found = _CONDITION.fullmatch(one.strip())
            if found is None:
                raise ValueError(f"the simulated Cassandra does not know the condition {one!r}")
            yield Condition(found[1], found[2], self.read(found[3]))


@cache
def parsed(text: str) -> tuple[Statement, ...]:
    """The statements of a text: one, or those of a batch; ValueError if a form is unknown."""
    terms = _Terms()
    plain = " ".join(text.split())
    batch = re.fullmatch(r"BEGIN BATCH (.*?);? APPLY BATCH;?", plain)
    if batch is None:
        return (_one(plain, terms),)
    return tuple(_one(one.strip(), terms) for one in batch[1].split(";") if one.strip())


def _one(text: str, terms: _Terms) -> Statement:
    if found := _SELECT.fullmatch(text):
        columns = found["columns"].split(", ")
        made = Statement("select", _table(found["table"]), list(terms.conditions(found["where"])), columns)
        made.grouped = found["grouped"] is not None
        made.limit = terms.read(found["limit"]) if found["limit"] else None
        return made
    if found := _INSERT.fullmatch(text):
        values = [terms.read(one) for one in found["values"].split(", ")]
        made = Statement("write", _table(found["table"]), marks_row=True)
        made.sets = list(zip(found["columns"].split(", "), values, strict=True))
        made.guard = "not exists" if found["guard"] else ""
        made.stamp = terms.read(found["stamp"]) if found["stamp"] else None
        return made
    if found := _UPDATE.fullmatch(text):
        made = Statement("write", _table(found["table"]))
        sides = (one.split(" = ") for one in found["sets"].split(", "))
        made.sets = [(column, terms.read(value)) for column, value in sides]
        made.where = list(terms.conditions(found["where"]))
        made.conditions = list(terms.conditions(found["conditions"] or "")) if found["conditions"] else []
        made.guard = "conditions" if made.conditions else ""
        return made
    if found := _DELETE.fullmatch(text):
        made = Statement("delete", _table(found["table"]))
        made.columns = (found["columns"] or "").strip().split(", ") if found["columns"] else []
        made.stamp = terms.read(found["stamp"]) if found["stamp"] else None
        made.where = list(terms.conditions(found["where"]))
        made.guard = "exists" if found["guard"] else ""
        return made
    raise ValueError(f"the simulated Cassandra does not know the statement {text!r}")


def _table(name: str) -> str:
    return name.rpartition(".")[2]


@cache
def schemas() -> dict[str, Schema]:
    """The tables, as the product creates them."""
    found = {}
    for text in (statement for step in MIGRATIONS for statement in step):
        plain = " ".join(text.split())
        name = re.search(r"EXISTS \{keyspace\}\.(\w+)", plain)
        key = re.search(r"PRIMARY KEY \((\([^)]*\)|\w+), ([^)]*)\)", plain)
        assert name is not None, plain
        assert key is not None, plain
        static = frozenset(re.findall(r"(\w+) \w+ static", plain))
        found[name[1]] = Schema(tuple(key[1].strip("()").split(", ")), tuple(key[2].split(", ")), static)
    return found
