"""Whether a new version of a computation can read the state that the old version has stored (section 4.4). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.growing.collections import SetState
from millwheel.sdk.growing.fields import COLLECTIONS
from millwheel.sdk.schema import DROPPED, GROWING_STATE

__all__ = ["state_problem"]

_LIBRARY: Final = "millwheel."
_LIBRARY_REMEDY: Final = (
    "a step of the library converts no states: keep the types of its records, aggregates and states, except "
    "for new fields with defaults; or give the step another name, to begin without state"
)
_KEPT_BY_UPDATE: Final = {
    "millwheel.operators.updating:Update": "stored.read(list[Old])[0]",
    "millwheel.operators.updating:ExpiringUpdate": "stored.read(list[tuple[int, Old]])[0][1]",
}
"""How ``migrate`` reads the state that an ``update`` step has stored, by its implementation."""
_KINDS: Final = frozenset({*COLLECTIONS.values(), DROPPED})
_STATELESS: Final = frozenset({"", "None", "NoneType"})
_MAX_DIFFERENCES: Final = 5
"""The maximum number of differences in the message."""


def state_problem(old: specs.ComputationSpec, new: specs.ComputationSpec) -> str:
    """Return why ``new`` must not run on the states of ``old``, and what to declare; empty if it may.

    It may in three cases. Both have the same form. Or ``new`` only adds fields that may be missing. Or ``new`` has a
    larger state version, which declares that it migrates states of smaller versions.

    The version of a state that grows is that of its plain fields. Each of its collections declares for itself how
    stored elements are converted. No version migrates from such a state to a plain one, or back: its pages cannot be
    read or written at once.
    """
    if (_grows(old) or _grows(new)) and old.state_type not in _STATELESS:
        if not (_grows(old) and _grows(new)):
            return (
                f"{_changed(old, new, _differences(old, new))}: no version turns a plain state into one that grows, or "
                "back: give the computation another name=, to begin without state"
            )
        if found := [*_collection_problems(old.state, new.state)]:
            if new.implementation.startswith(_LIBRARY):
                return f"{_changed(old, new, [what for what, _ in found])}: {_LIBRARY_REMEDY}"
            return _changed(old, new, [f"{what}: {remedy}" for what, remedy in found])
    if new.state.version < old.state.version:
        return (
            f"its state version is {new.state.version}, and states of version {old.state.version} are stored: "
            f"set state_version = {old.state.version + 1} and migrate from those"
        )
    if new.state.version > old.state.version or old.state_type in _STATELESS:
        return ""
    differences = _differences(old, new)
    if not differences:
        return ""
    version = max(1, old.state.version) + 1
    return f"{_changed(old, new, differences)}: {_remedy(new.implementation, version)}"


def _remedy(implementation: str, version: int) -> str:
    """Return what makes the change possible. No user can define ``migrate`` for a step of the library."""
    if implementation in _KEPT_BY_UPDATE:
        return (
            f"update converts no states. To keep them, write the step as process under the same name, with "
            f"state_version = {version} and migrate(self, stored), which makes the new state of an old one: "
            f"{_KEPT_BY_UPDATE[implementation]}. Or keep the fields, and add new ones with defaults; or give the "
            "step another name, to begin without state"
        )
    if implementation.startswith(_LIBRARY):
        return _LIBRARY_REMEDY
    return (
        f"set state_version = {version} and define migrate(self, stored), which makes the new "
        "state of an old one; or give the computation another name=, to begin without state"
    )


def _grows(computation: specs.ComputationSpec) -> bool:
    return any(not field.path and field.type == GROWING_STATE for field in computation.state.fields)


def _changed(old: specs.ComputationSpec, new: specs.ComputationSpec, differences: list[str]) -> str:
    shown = "; ".join(differences[:_MAX_DIFFERENCES]) + ("; …" if len(differences) > _MAX_DIFFERENCES else "")
    return f"its state is a {new.state_type}, and a {old.state_type} is stored that cannot be read as one ({shown})"


def _differences(old: specs.ComputationSpec, new: specs.ComputationSpec) -> list[str]:
    if not old.state.fields:
        same = old.state_type == new.state_type
        return [] if same else [f"it was a {old.state_type}"]
    if old.state.format != new.state.format:
        then, now = (specs.ValueFormat.Name(one.state.format).removeprefix("VALUE_FORMAT_") for one in (old, new))
        return [f"it was encoded as {then.lower()}, and is as {now.lower()} now"]
    return _field_differences(_plain_fields(old.state), _plain_fields(new.state))


_Fields = dict[str, specs.StateField]
_Functions = Sequence[specs.ElementConversion]


def _field_differences(before: _Fields, after: _Fields) -> list[str]:
    found = []
    for path, field in before.items():
        if path not in after:
            found.append(f"{_name(path)} is gone")
        elif after[path].type != field.type:
            found.append(f"{_name(path)} was {field.type}, and is {after[path].type}")
        elif field.optional and not after[path].optional:
            found.append(f"{_name(path)} may be missing, and has no default now")
    spared = {path for path in after.keys() - before.keys() if after[path].optional}
    for path in sorted(after.keys() - before.keys() - spared):
        if not any(path.startswith((f"{one}.", f"{one}[")) for one in spared):
            found.append(f"{_name(path)} is new, and has no default")
    return found


def _name(path: str) -> str:
    return f"field {path!r}" if path else "the whole"


# States that grow.


def _collections(schema: specs.StateSchema) -> dict[str, str]:
    """The kind of each collection by its field, with those that were dropped. Their names have no dots or brackets."""
    return {field.path: field.type for field in schema.fields if field.type in _KINDS}


def _plain_fields(schema: specs.StateSchema) -> _Fields:
    collections = _collections(schema)
    return {field.path: field for field in schema.fields if field.path.partition("[")[0] not in collections}


def _collection_problems(old: specs.StateSchema, new: specs.StateSchema) -> Iterator[tuple[str, str]]:
    """Why collections of ``new`` must not read what those of ``old`` have stored: the differences and their remedies.

    Invariant: the functions of a field begin with those of the version before, and a dropped name is never used again.
    Nothing converts a whole collection, so elements of each earlier version may be stored.
    """
    kinds = {field.path: field.type for field in new.fields}
    before, after = ({one.field: one.functions for one in schema.conversions} for schema in (old, new))
    for name, kind in _collections(old).items():
        now = kinds.get(name)
        functions = after.get(name, ())
        was, names = [[one.name for one in some] for some in (before.get(name, ()), functions)]
        if kind == DROPPED and now != DROPPED:
            yield f"field {name!r} was dropped", "keep it as a millwheel.Dropped, and give a new field another name"
        elif now is None:
            yield f"field {name!r} is gone", "keep it as a millwheel.Dropped, and its elements are deleted"
        elif now not in (kind, DROPPED):
            remedy = "keep it as a millwheel.Dropped, and give the new field another name"
            yield f"field {name!r} was {kind}, and is {now}", remedy
        elif now == kind and names[: len(was)] != was:
            yield (
                f"field {name!r} was migrated by {', '.join(was)}, and is by {', '.join(names) or 'nothing'}",
                "elements of all earlier versions may be stored, so keep these functions and their order, and add new "
                "ones at the end",
            )
        elif now == kind != DROPPED:
            yield from _element_problems(old, new, name, before.get(name, ()), functions)


def _element_problems(
    old: specs.StateSchema, new: specs.StateSchema, name: str, before: _Functions, after: _Functions
) -> Iterator[tuple[str, str]]:
    """The same of a collection's keys, its elements, and the functions that convert them."""
    keys = "[]" if _collections(new)[name] == COLLECTIONS[SetState] else "[key]"
    if found := _field_differences(_below(old.fields, name + keys), _below(new.fields, name + keys)):
        yield "; ".join(found), "elements are found by their encoded keys, so add a field of another name"
        return
    # What an element may be stored as: what each of the functions took, and then what the old version's elements were.
    stored = [*(one.takes for one in before), old.fields]
    for fields, function in zip(stored, after, strict=False):
        if found := _field_differences(_below(fields, f"{name}[]"), _below(function.takes, f"{name}[]")):
            yield f"as {function.name} takes it, {'; '.join(found)}", "let the function take what is stored"
    if len(after) == len(before) and (
        found := _field_differences(_below(old.fields, f"{name}[]"), _below(new.fields, f"{name}[]"))
    ):
        yield "; ".join(found), "give the field the default millwheel.migrated(function), which converts an element"


def _below(fields: Iterable[specs.StateField], path: str) -> _Fields:
    return {field.path: field for field in fields if field.path.startswith(path)}
