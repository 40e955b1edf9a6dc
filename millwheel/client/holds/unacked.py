"""Explains in a sentence why a computation does not ACK, from its low watermark (sections 4.5, 6.1.1)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from millwheel.client.control import ControlClient
from millwheel.client.holds.chain import explain_chain
from millwheel.client.holds.names import GroupNames
from millwheel.client.holds.watermark import open_authority
from millwheel.model.incarnation import IncarnationId

__all__ = ["unacked_explainer"]

_SECONDS: Final = 4.0


def unacked_explainer(address: str) -> Callable[[IncarnationId], Awaitable[str]]:
    """Return the function that an injector calls when a computation does not ACK.

    The function takes the computation's incarnation id. It returns the explanation, or an empty text.
    """

    async def explain(incarnation: IncarnationId) -> str:
        async with ControlClient(address, deadline=_SECONDS, patience=_SECONDS) as client:
            names = GroupNames.from_records(await client.list_topologies())
            async with await open_authority(client, _SECONDS) as authority:
                _, cause = await explain_chain(incarnation, client, authority, names)
        if cause.kind in ("none", "injector"):
            return ""  # The computation only waits for its input. Its owner can explain more.
        return f"{cause.text}; {cause.remedy}" if cause.remedy else cause.text

    return explain
