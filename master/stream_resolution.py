"""Resolves the names of streams that callers give: a full name, or a short one while it is unique in the cluster."""

from __future__ import annotations

from typing import NoReturn

from millwheel.errors import did_you_mean
from millwheel.model.catalog import Catalog
from millwheel.model.stream_names import candidates, is_full, local_name, owner_of
from millwheel.rpc.failures import FailureCode, RequestError

__all__ = ["refuse_unknown_stream", "resolve_stream"]


def resolve_stream(name: str, known: Catalog) -> str:
    """Return the full name of a stream. A full name is returned as it is, whether or not the stream exists.

    Raises:
        RequestError: No live topology has a stream of that short name (NOT_FOUND), or several have (INVALID_ARGUMENT).
    """
    if is_full(name):
        return name
    found = candidates(name, known.streams())
    if not found:
        refuse_unknown_stream(name, known)
    if len(found) > 1:
        raise RequestError(
            FailureCode.INVALID_ARGUMENT,
            f"{len(found)} topologies have a stream {name!r}: {', '.join(found)}",
            "use one of these full names",
            reason="STREAM_AMBIGUOUS",
        )
    return found[0]


def refuse_unknown_stream(name: str, known: Catalog) -> NoReturn:
    """Raise NOT_FOUND with the nearest existing name.

    For a full name only streams of its topology are named: the caller may have no role for others.
    """
    streams = sorted(known.streams())
    if is_full(name):
        streams = [stream for stream in streams if owner_of(stream) == owner_of(name)]
    short = sorted({local_name(owner_of(stream), stream) for stream in streams})
    meant = candidates(name, streams)
    hint = f" (in full: {', '.join(meant)})" if meant else did_you_mean(name, streams if is_full(name) else short)
    raise RequestError(
        FailureCode.NOT_FOUND,
        f"there is no stream {name!r}{hint}",
        "use the full name" if meant else "submit the topology that declares or produces it first",
        reason="STREAM_UNKNOWN",
    )
