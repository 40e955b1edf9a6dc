"""What a caller does not get to see of a response: elements of topologies for which it holds no role."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from millwheel.model.stream_names import is_full, owner_of
from millwheel.rpc.access.callers import Caller
from millwheel.rpc.access.page_tokens import PageTokens
from millwheel.rpc.access.requirements import Path, topology_of_query, values_at

__all__ = ["filtered", "sees_all"]


def sees_all(caller: Caller) -> bool:
    """Whether a caller gets all of each response: it holds the role for the cluster, or the method has no such part."""
    access = caller.access
    return not (access.kept or access.hidden) or all(caller.holds(rule, None) for rule in access.rules)


def filtered(caller: Caller, response: Any, pages: PageTokens) -> Any:
    """Return a response, without what is not for the caller."""
    access = caller.access
    if not isinstance(response, Message) or sees_all(caller):
        return response
    pages.seal(response)
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
