"""Results in a user's own type: its fields are filled by their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from itertools import takewhile
from keyword import iskeyword
from typing import Any, Final, get_args, get_type_hints

import msgspec

from millwheel.agg import Aggregator
from millwheel.agg.aggregator import objection_of
from millwheel.agg.reading import NUMBER
from millwheel.agg.several import combined
from millwheel.model.time import Timestamp
from millwheel.sdk.declarations import Objection
from millwheel.sdk.errors import UsageError, did_you_mean
from millwheel.sdk.field_paths import attribute
from millwheel.sdk.keys import KeyExtractor, split_key
from millwheel.sdk.typeinfo import (
    Field,
    can_be_read_as,
    describe_type,
    field_of,
    members,
    returned_type,
    runtime_classes,
    supertype,
    type_name,
)
from millwheel.streams.declaring import Input
from millwheel.windows.result import Row

__all__ = ["aggregates_by_name", "note_objection", "row_of"]

_OF_WINDOW: Final[Mapping[str, Any]] = {"key": str, "start": Timestamp, "end": Timestamp, "revision": int}


def aggregates_by_name(
    name: str, into: Any, aggregates: Mapping[str, Aggregator[Any, Any]], given: Input, *, windowed: bool = True
) -> tuple[Aggregator[Any, Any], Row]:
    """Several aggregates as one, and how their results become values of ``into``. See :func:`row_of`.

    Raises:
        UsageError: The step ``name`` has no aggregate. Or an aggregate reads a field that the records do not have.
    """
    if not aggregates:
        raise UsageError(f"aggregate({name!r}) has no aggregate: add one, such as n=agg.count()")
    aggregator = combined(aggregates).bind(given.known_type)
    values = get_type_hints(aggregator.result_type)
    return aggregator, row_of(into, values, given.extractor, given.known_type, windowed=windowed)


def note_objection(name: str, aggregator: Aggregator[Any, Any], given: Input) -> None:
    """Give the topology the objection to the bound aggregator of step ``name``, if there is one.

    The step has been declared: of one that is not there, because it was an error, nothing is refused.
    """
    if objection := objection_of(aggregator):
        given.topology.declare(Objection(name, objection))


def row_of(
    into: Any, values: Mapping[str, Any], extractor: KeyExtractor, record_type: Any, *, windowed: bool = True
) -> Row:
    """How results become values of ``into``: a struct or dataclass, or a generated struct if it is None.

    Its fields are named like the aggregates, like the fields that are the key or as ``key_by`` names it, or ``key``,
    ``start``, ``end`` and ``revision``.

    Args:
        into: The class.
        values: The types of the aggregates, by name.
        extractor: The key of the records.
        record_type: The type of the records.
        windowed: Whether a result is of a window, so that it has ``start``, ``end`` and ``revision``.

    Raises:
        UsageError: A field has a name that is none of these, and no default. Or an aggregate has no field. Or a field
            cannot hold what fills it. Or the records do not have a field of the key. Or two of these have the same
            name.
    """
    for problem in extractor.problems(record_type):
        raise UsageError(f"{extractor}: {problem}")
    parts = (extractor.name,) if extractor.name else tuple(path.rpartition(".")[2] for path in extractor.fields)
    general = _OF_WINDOW if windowed else {"key": str}
    types = _part_types(extractor, record_type) if parts else []
    offered = {**general, **{part: _offered(into, part, known) for part, known in zip(parts, types, strict=True)}}
    twice = sorted({*offered} & {*values})
    if twice:
        raise UsageError(f"the aggregate {twice[0]!r} has the name of a part of the result: give it another name")
    offered.update(values)
    if into is None:
        names = [*(parts or ("key",)), *(("start", "end") if windowed else ()), *values]
        names += ["revision"] if windowed else []
        into = msgspec.defstruct("Row", [(name, offered[name]) for name in names], frozen=True)
    filled = _filled(into, offered, values)
    _check_types(into, {name: offered[name] for name in filled if name not in parts})
    return Row(into, _maker(into, filled, parts, offered, values))


def _maker(
    into: Any, filled: Sequence[str], parts: Sequence[str], offered: Mapping[str, Any], values: Mapping[str, Any]
) -> Callable[[str, Timestamp, Timestamp, Any, int], Any]:
    """``Row.make``, from source code: it runs for each result."""

    def source_of(name: str) -> str:
        if name in values:
            return attribute("value", name)
        if name not in parts:
            return name
        text = f"split(key)[{parts.index(name)}]" if len(parts) > 1 else "key"
        return f"int({text})" if offered[name] is int else text

    placed = takewhile(lambda pair: pair[0] == pair[1], zip(filled, _places(into), strict=False))
    arguments = [source_of(name) for name, _ in placed]  # a call without names is the fastest
    arguments += [f"**{{{name!r}: {source_of(name)}}}" for name in filled[len(arguments) :]]
    names: dict[str, Any] = {"into": into, "split": split_key}
    exec(f"def make(key, start, end, value, revision): return into({', '.join(arguments)})", names)
    made: Callable[[str, Timestamp, Timestamp, Any, int], Any] = names["make"]
    return made


def _places(into: Any) -> list[str]:
    """The parameters of a class that need no name, in their order."""
    fields = getattr(into, "__struct_fields__", ())
    if any(iskeyword(name) for name in fields):
        return []  # such a class has no signature
    parameters = signature(into).parameters.values()
    return [one.name for one in parameters if one.kind is Parameter.POSITIONAL_OR_KEYWORD]


def _part_types(extractor: KeyExtractor, record_type: Any) -> list[type | None]:
    """Whether each part of the key is an int or a str. None where nothing says it."""
    if extractor.function is not None:
        return [_int_or_str(returned_type(extractor.function))]
    return [_int_or_str(_type_at(record_type, path)) for path in extractor.fields]


def _type_at(record_type: Any, path: str) -> Any:
    at = record_type
    for name in path.split("."):
        found = field_of(at, name)
        if found is None or isinstance(found, str):
            return None
        at = found.type
    return at


def _int_or_str(annotation: Any) -> type | None:
    kinds = {_kind(supertype(member)) for member in members(annotation) if member is not type(None)}
    return kinds.pop() if len(kinds) == 1 else None


def _kind(plain: Any) -> type | None:
    return next((kind for kind in (int, str) if isinstance(plain, type) and issubclass(plain, kind)), None)


def _offered(into: Any, part: str, known: type | None) -> type:
    """The type of a part of the key in a result. Where nothing says it, the field that it fills does.

    Raises:
        UsageError: The field is of another type.
    """
    filled = None if into is None else field_of(into, part)
    wanted = filled.type if isinstance(filled, Field) else Any
    if known is None:
        known = _int_or_str(wanted) or str
    classes = runtime_classes(wanted) or (known,)
    if not any(known is one or (issubclass(one, known) and one is not bool) or one in (Any, object) for one in classes):
        raise UsageError(
            f"the field {part!r} of {type_name(into)} is {type_name(wanted)}, "
            f"and this part of the key is {type_name(known)}"
        )
    return known


_UNSTATED: Final = (
    ". If the records do not state the type of what is aggregated, as those of a union do not, it is taken for a "
    "number: then state it, such as agg.distinct('driver', str)"
)


def _parts(given: Any) -> tuple[Any, ...]:
    """A type, and its arguments."""
    return (given, *get_args(given))


def _check_types(into: Any, offered: Mapping[str, Any]) -> None:
    """Check that each field can hold what fills it. Where a type is not known, only the first result can show it.

    Raises:
        UsageError: A field cannot.
    """
    for name, given in offered.items():
        field = field_of(into, name)
        if isinstance(field, Field) and not can_be_read_as(field.type, given):
            raise UsageError(
                f"the field {name!r} of {type_name(into)} is {type_name(field.type)}, and a result has "
                f"{type_name(given)} there: give the field this type{_UNSTATED * (NUMBER in _parts(given))}"
            )


def _filled(into: Any, offered: Mapping[str, Any], values: Mapping[str, Any]) -> Sequence[str]:
    """The fields of ``into`` that a result fills. ``values`` are those of ``offered`` that need a field."""
    fields = describe_type(into).fields  # type: ignore[attr-defined]  # of a struct or dataclass
    known = [field.name for field in fields]
    for name in values:
        if name not in known:
            raise UsageError(
                f"no field {name!r} in {type_name(into)}{did_you_mean(name, known)}: an aggregate fills the field "
                "of its name"
            )
    for field in fields:
        if field.required and field.name not in offered:
            hint = did_you_mean(field.name, list(offered))
            raise UsageError(
                f"nothing fills the field {field.name!r} of {type_name(into)}{hint}: an aggregate of that name would, "
                f"or a default; a result has {', '.join(map(repr, offered))}"
            )
    return [field.name for field in fields if field.name in offered]
