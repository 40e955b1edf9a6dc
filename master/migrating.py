"""Whether a new version of a computation can read the state that the old version has stored (section 4.4). Pure."""

from __future__ import annotations

from typing import Final

from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.schema import GROWING_STATE

__all__ = ["state_problem"]

_LIBRARY: Final = "millwheel."
_STATELESS: Final = frozenset({"", "None", "NoneType"})
_MAX_DIFFERENCES: Final = 5
"""The maximum number of differences in the message."""


def state_problem(old: specs.ComputationSpec, new: specs.ComputationSpec) -> str:
    """Return why ``new`` must not run on the states of ``old``, and what to declare; empty if it may.

    It may in three cases. Both have the same form. Or ``new`` only adds fields that may be missing. Or ``new`` has a
    larger state version, which declares that it migrates states of smaller versions.

    No version migrates from a state that grows, or to one: its pages cannot be read or written at once.
    """
    if (_grows(old) or _grows(new)) and old.state_type not in _STATELESS:
        if not (differences := _differences(old, new)):
            return ""
        return (
            f"{_changed(old, new, differences)}: a state that grows has no versions, so add a field of another name, "
            "or give the computation another name=, to begin without state"
        )
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
    """Return what makes the change possible. Nobody can define ``migrate`` for a step of the library."""
    if implementation.startswith(_LIBRARY):
        return (
            "a step of the library converts no states: keep the types of its records, aggregates and states, except "
            "for new fields with defaults; or give the step another name, to begin without state"
        )
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
    before = {field.path: field for field in old.state.fields}
    after = {field.path: field for field in new.state.fields}
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
