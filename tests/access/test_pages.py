"""A page token of a list shows no name that the list leaves out for its caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from millwheel.config.access_policy import PolicyFile
from millwheel.coordination.contract import Put
from millwheel.master.replica import MasterReplica
from millwheel.master.services import add_services
from millwheel.model.catalog_keys import topology_key
from millwheel.rpc.access.authorization import Authorization
from millwheel.rpc.errors import from_rpc_error
from millwheel.rpc.failures import FailureCode
from millwheel.rpc.server import bind, create_server
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import control_pb2 as control
from millwheel.rpc.v1.control_pb2_grpc import TopologyServiceStub
from millwheel.store.memory import MemoryStore
from tests.access.identities import Identities, channel_as, grant
from tests.coordination.memory import MemoryCoordinator
from tests.patience import patience

NAMES = ("alpha", "payroll", "salaries", "shop")


class Lister:
    """Lists topologies page by page, as one caller."""

    def __init__(self, identities: Identities, address: str) -> None:
        self._identities = identities
        self._address = address

    async def page(self, who: str, token: str, size: int = 1) -> control.ListTopologiesResponse:
        async with channel_as(self._address, self._identities.certificate(who)) as channel:
            stub: Any = TopologyServiceStub(channel)
            request = control.ListTopologiesRequest(page_size=size, page_token=token)
            found: control.ListTopologiesResponse = await stub.ListTopologies(request, timeout=patience(10))
            return found

    async def pages(self, who: str) -> tuple[list[str], list[str]]:
        """The names and the tokens of all pages."""
        names: list[str] = []
        tokens: list[str] = []
        token = ""
        while True:
            page = await self.page(who, token)
            names += [one.spec.name for one in page.topologies]
            if not (token := page.next_page_token):
                return names, tokens
            tokens.append(token)


@pytest.fixture
async def lister(tmp_path: Path) -> AsyncIterator[Lister]:
    identities, coordinator = Identities(tmp_path), MemoryCoordinator()
    for name in NAMES:
        record = catalog.TopologyRecord(state=catalog.TOPOLOGY_STATE_PAUSED)
        record.spec.name = name
        await coordinator.transact((), [Put(topology_key(name), record.SerializeToString())])
    grants = grant("certificate:sue", ("read",), ["shop"]) + grant("certificate:root", ("read",))
    server = create_server([Authorization(PolicyFile(identities.policy(grants)))])
    address = bind(server, tls=identities.server)
    master = MasterReplica(coordinator, MemoryStore(), address, ttl=patience(1))
    add_services(server, master)
    await server.start()
    running = asyncio.ensure_future(master.run())
    await master.leading()
    yield Lister(identities, address)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await server.stop(0)
    await coordinator.close()


async def test_a_page_token_names_no_topology_that_is_left_out(lister: Lister) -> None:
    names, tokens = await lister.pages("sue")
    assert names == ["shop"]
    assert tokens
    assert all(one.startswith("sealed:") for one in tokens)
    assert not [name for name in NAMES if any(name in one for one in tokens)]


async def test_a_token_in_clear_tells_nothing(lister: Lister) -> None:
    """Whether a page follows would tell which names exist."""
    for token in ("payr", "sealed:payr", "sealed:", "ä"):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await lister.page("sue", token)
        error = from_rpc_error(caught.value, "")
        assert (error.code, error.reason) == (FailureCode.INVALID_ARGUMENT, "PAGE_TOKEN_INVALID")


async def test_who_may_see_all_pages_by_names(lister: Lister) -> None:
    assert await lister.pages("root") == (list(NAMES), list(NAMES[:-1]))
    token = (await lister.page("sue", "")).next_page_token
    page = await lister.page("root", token, 10)
    assert [one.spec.name for one in page.topologies] == list(NAMES[1:]), "a role that is granted meanwhile"
