"""Without a server, an injector and a subscription log the reason for waiting, and fail when patience ends."""

from __future__ import annotations

import asyncio
import logging

import pytest

from deploy.local.child import free_ports
from millwheel.client.injector import Injector, InjectorSettings, session
from millwheel.client.subscription import Subscription, log_link
from millwheel.rpc.failures import RequestError
from millwheel.rpc.waiting import wait_notices


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make notices come at once."""

    def at_once(describe: object, say: object, *, first: float = 0.0) -> object:
        return wait_notices(describe, say, first=0.2)  # type: ignore[arg-type]

    monkeypatch.setattr(session, "wait_notices", at_once)
    monkeypatch.setattr(log_link, "wait_notices", at_once)


@pytest.mark.usefixtures("impatient")
async def test_clients_without_a_server_report_what_they_wait_for(caplog: pytest.LogCaptureFixture) -> None:
    address = f"localhost:{free_ports(1)[0]}"

    async def inject() -> None:
        with pytest.raises(RequestError, match="cannot reach a MillWheel server"):
            async with Injector("queries", address=address, process="p", settings=InjectorSettings(patience=1.0)):
                pass

    async def subscribe() -> None:
        with pytest.raises(RequestError, match="cannot reach a MillWheel server"):
            async with Subscription("windows", address=address, patience=1.0):
                pass

    with caplog.at_level(logging.WARNING, "millwheel.client"):
        await asyncio.gather(inject(), subscribe())
    injector, subscription = sorted(record.getMessage() for record in caplog.records)
    assert injector.startswith("injector 'p' of stream 'queries' has waited 0 s for the cluster at " + address)
    assert subscription.startswith("the subscription of stream 'windows' has waited 0 s, 1 s at most, for the cluster")
    assert "Connection refused" in injector
    assert "Connection refused" in subscription
