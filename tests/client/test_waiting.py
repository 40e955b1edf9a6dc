"""Without a server, an injector and a subscription log the reason for waiting, and fail when patience ends."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest

from deploy.local.child import free_ports
from millwheel.client.injector import Injector, InjectorSettings, session
from millwheel.client.subscription import Subscription, log_link
from millwheel.rpc.failures import RequestError
from millwheel.rpc.waiting import wait_notices
from tests.patience import patience


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make notices come at once."""

    def at_once(describe: object, say: object, *, first: float = 0.0) -> object:
        return wait_notices(describe, say, first=patience(0.1))  # type: ignore[arg-type]

    monkeypatch.setattr(session, "wait_notices", at_once)
    monkeypatch.setattr(log_link, "wait_notices", at_once)


@pytest.mark.usefixtures("impatient")
async def test_clients_without_a_server_report_what_they_wait_for(caplog: pytest.LogCaptureFixture) -> None:
    address, settings = f"localhost:{free_ports(1)[0]}", InjectorSettings(patience=patience(0.4))

    async def inject() -> None:
        with pytest.raises(RequestError, match="cannot reach a MillWheel server"):
            async with Injector("queries", address=address, process="p", settings=settings):
                pass

    async def subscribe() -> None:
        with pytest.raises(RequestError, match="cannot reach a MillWheel server"):
            async with Subscription("windows", address=address, patience=settings.patience):
                pass

    with caplog.at_level(logging.WARNING, "millwheel.client"):
        await asyncio.gather(inject(), subscribe())
    injector, subscription = sorted(record.getMessage() for record in caplog.records)
    assert re.match(rf"injector 'p' of stream 'queries' has waited \d+ s for the cluster at {address}", injector)
    assert re.match(
        r"the subscription of stream 'windows' has waited \d+ s, [\d.]+ s at most, for the cluster", subscription
    )
    assert "Connection refused" in injector
    assert "Connection refused" in subscription
