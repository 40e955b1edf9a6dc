"""Gateways of HTTP in this process, and requests to them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import ClientSession

from millwheel.client.injector import Injector, InjectorSettings, Limits
from millwheel.client.subscription import From, Subscription
from millwheel.injectors.http.gateway import SOURCE, HttpGateway, HttpSettings
from millwheel.injectors.http.serving import ServingLimits, listen, serve_gateway
from millwheel.rpc.access.authorization import Authorization
from millwheel.rpc.identity import TlsFiles
from tests.patience import patience

LINES = {"Content-Type": "application/x-ndjson"}
DEFAULT = HttpSettings()
NO_LIMITS = ServingLimits()


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request."""

    status: int
    body: Any
    headers: dict[str, str]

    @property
    def reason(self) -> str:
        """The reason of a refusal."""
        return str(self.body["error"]["reason"])

    @property
    def message(self) -> str:
        """The text of a refusal."""
        return str(self.body["error"]["message"])


@dataclass(frozen=True, slots=True)
class Gate:
    """A gateway that runs."""

    url: str
    injector: Injector
    client: ClientSession

    async def post(self, body: str | bytes, key: str = "", **headers: str) -> Answer:
        """Send a request of JSON lines. Names of headers have ``_`` for ``-``."""
        given = {**LINES, **({"Idempotency-Key": key} if key else {})}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.client.post(self.url, data=body, headers=given) as response:
            return Answer(response.status, await response.json(), dict(response.headers))

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.url.split("/")[2].rpartition(":")[2])


@asynccontextmanager
async def gateway(
    address: str,
    process: str = "one",
    settings: HttpSettings = DEFAULT,
    limits: ServingLimits = NO_LIMITS,
    tls: TlsFiles | None = None,
    access: Authorization | None = None,
    window: int = 50_000,
    stream: str = "posted/orders",
    port: int = 0,
) -> AsyncIterator[Gate]:
    """A gateway. It is gone without a farewell at the end.

    ``window``: how many un-ACKed records its injector has at most.
    """
    bounds = Limits(window_records=window)
    chosen = InjectorSettings(patience=patience(10), any_timestamp=settings.reader.any_timestamp, limits=bounds)
    injector = Injector(stream, address=address, process=process, source=SOURCE, settings=chosen)
    await injector.open()
    try:
        made = HttpGateway(injector, settings)
        running = asyncio.create_task(made.run())
        async with AsyncExitStack() as stack, ClientSession() as client:
            stack.callback(running.cancel)
            yield Gate(
                await serve_gateway(stack, made, listen("127.0.0.1", port), limits, tls, access), injector, client
            )
        await asyncio.gather(running, return_exceptions=True)
    finally:
        await injector.close()


def lines(orders: Sequence[Any]) -> str:
    """Orders as JSON lines."""
    return "".join(json.dumps(order) + "\n" for order in orders)


def order(number: int, user: str = "ann", **more: Any) -> dict[str, Any]:
    """An order as JSON has it."""
    return {"user": user, "number": number, **more}


async def finish(address: str, *gates: Gate, stream: str = "posted/echo") -> list[dict[str, Any]]:
    """End the stream, and return all orders that took effect."""
    for gate in gates:
        await gate.injector.finish(patience(20))
    found: list[dict[str, Any]] = []
    async with Subscription(stream, start=From.OLDEST, address=address, record_type=dict, until_end=True) as reader:
        async for batch in reader:
            found += batch.values
    return sorted(found, key=lambda row: (row["user"], row["number"], row["nth"]))
