"""Completion of names in the shell. Where no server answers at once, there are no candidates, and no message."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import typer

from millwheel.client.control import DEFAULT_ADDRESS, ControlClient
from millwheel.model.interval_map import interval_from_proto
from millwheel.model.stream_names import dead_letter_stream
from millwheel.rpc.identity import TlsFiles, TokenSource, use_tls, use_token
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = ["complete_computations", "complete_intervals", "complete_places", "complete_streams", "complete_topologies"]

DEADLINE_SECONDS: Final = 1.0
"""The most time that a person waits for candidates after the start of the command."""


def complete_topologies(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of topologies."""
    return _asked(context, incomplete, lambda client: _names(client, lambda record: [record.spec.name]))


def complete_computations(context: typer.Context, incomplete: str) -> list[str]:
    """Return computations, as TOPOLOGY/COMPUTATION."""
    return _asked(context, incomplete, lambda client: _names(client, _computations))


def complete_places(context: typer.Context, incomplete: str) -> list[str]:
    """Return topologies and computations."""
    return _asked(
        context, incomplete, lambda client: _names(client, lambda record: [record.spec.name, *_computations(record)])
    )


def complete_streams(context: typer.Context, incomplete: str) -> list[str]:
    """Return streams, in full. If some of a short name is typed, also the short names that are unique."""

    async def work(client: ControlClient) -> list[str]:
        full = await _names(client, _streams)
        short = [name.rpartition("/")[2] for name in full]
        unique = [name for name in short if short.count(name) == 1]
        return [*full, *(unique if incomplete else ())]

    return _asked(context, incomplete, work)


def complete_intervals(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return the journals of intervals, each with the computation and the keys."""
    shown: dict[str, str] = {}

    async def work(client: ControlClient) -> list[str]:
        for one in await client.list_intervals():
            whose = f"log of {one.stream}" if one.stream else f"{one.topology}/{one.computation}"
            shown[one.interval.journal] = f"{whose} {interval_from_proto(one.interval.keys)}"
        return list(shown)

    return [(name, shown[name]) for name in _asked(context, incomplete, work)]


def _computations(record: catalog.TopologyRecord) -> list[str]:
    return [f"{record.spec.name}/{one.name}" for one in record.spec.computations]


def _streams(record: catalog.TopologyRecord) -> list[str]:
    own = [one.name for one in record.spec.streams if not one.external]
    return [*own, dead_letter_stream(record.spec.name)]


async def _names(client: ControlClient, of: Callable[[catalog.TopologyRecord], Iterable[str]]) -> list[str]:
    return [name for record in await client.list_topologies() for name in of(record)]


def _asked(context: typer.Context, incomplete: str, work: Callable[[ControlClient], Awaitable[list[str]]]) -> list[str]:
    """Return the candidates that ``work`` finds within the deadline. Errors are no use beside a shell's prompt."""
    logging.disable(logging.CRITICAL)
    try:
        _use_tls(context)
        found = asyncio.run(_within_deadline(_address(context), work))
    except Exception:
        return []
    return sorted({name for name in found if name.startswith(incomplete)})


async def _within_deadline(address: str, work: Callable[[ControlClient], Awaitable[list[str]]]) -> list[str]:
    async with asyncio.timeout(DEADLINE_SECONDS), ControlClient(address, deadline=DEADLINE_SECONDS) as client:
        return await work(client)


def _address(context: typer.Context) -> str:
    """The address in the line that is being completed, or else the environment's."""
    given = context.params.get("address")
    return given or os.environ.get("MILLWHEEL_ADDRESS") or DEFAULT_ADDRESS


def _use_tls(context: typer.Context) -> None:
    """Use the TLS files in the line that is being completed. The command's callback does not run for a completion."""
    options = context.find_root().params
    ca, cert, key = (options.get(name) for name in ("tls_ca", "tls_cert", "tls_key"))
    if ca and cert and key:
        use_tls(TlsFiles(ca, cert, key))
    token, file = options.get("token"), options.get("token_file")
    if token or file:
        use_token(TokenSource(token or "", file))
