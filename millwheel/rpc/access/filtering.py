"""What a caller does not get to see of a response: elements of topologies for which it holds no role."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from millwheel.model.stream_names import is_full, owner_of
from millwheel.rpc.access.callers import Caller
from millwheel.rpc.access.requirements import Path, topology_of_query, values_at

__all__ = ["filtered"]


def filtered(caller: Caller, response: Any) -> Any:
    """Return a response, without what is not for the caller. Who holds the role for the cluster gets all of it."""
    access = caller.access
    if not (access.kept or access.hidden) or not isinstance(response, Message):
        return response
    if all(caller.holds(rule, None) for rule in access.rules):
        return response
    for field in access.hidden:
        response.ClearField(field)
    for kind, name, path in access.kept:
        elements = getattr(response, name)
        kept = [one for one in elements if _may_see(caller, kind, one, path)]
        if len(kept) < len(elements):
            # A copy, because the list owns its elements.
            copies = [type(one).FromString(one.SerializeToString()) for one in kept]
            response.ClearField(name)
            getattr(response, name).extend(copies)
    return response


def _may_see(caller: Caller, kind: str, element: Message, path: Path) -> bool:
    names = [value for value, _ in values_at(element, path)]
    return all(caller.holds(rule, _topology(kind, name)) for name in names or [""] for rule in caller.access.rules)


def _topology(kind: str, name: str) -> str | None:
    if kind == "queries":
        return topology_of_query(name)
    if kind == "streams":
        return owner_of(name) if is_full(name) else None
    return name or None
