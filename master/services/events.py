"""ListEvents of ClusterService: what has happened in the cluster, from the coordinator."""

from __future__ import annotations

from millwheel.master.services.pages import page_rows
from millwheel.model.catalog import Catalog
from millwheel.rpc.page_tokens import foreign_page_token
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import cluster_pb2 as wire

__all__ = ["list_events"]


def list_events(known: Catalog, request: wire.ListEventsRequest) -> wire.ListEventsResponse:
    """Return a page of events, the newest first."""
    size = page_rows(request.page_size)
    below = _from_token(request.page_token) if request.page_token else None
    response = wire.ListEventsResponse()
    for number in sorted(known.events, reverse=True):
        if below is not None and number >= below:
            continue
        event = _read(known.events[number])
        if event is None or not _selected(event, request):
            continue
        if len(response.events) == size:
            response.next_page_token = str(response.events[-1].number)
            break
        response.events.append(event)
    return response


def _read(value: bytes) -> catalog.EventRecord | None:
    try:
        return catalog.EventRecord.FromString(value)
    except ValueError:
        return None


def _selected(event: catalog.EventRecord, request: wire.ListEventsRequest) -> bool:
    return (
        request.topology in ("", event.topology)
        and event.kind.startswith(request.kind)
        and max(event.at_us, event.last_at_us) >= request.since_us
    )


def _from_token(token: str) -> int:
    try:
        return int(token)
    except ValueError as error:
        raise foreign_page_token() from error
