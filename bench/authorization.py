"""What the interceptor of roles costs a stream of deliveries, over loopback gRPC with TLS.

    python bench/authorization.py [--batches 20000] [--rounds 5]

The receiver answers each batch at once and does nothing else, so the figures are those of gRPC and of the interceptor.
The least CPU time of all rounds counts: other processes disturb it least. The ways take turns.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from time import process_time
from typing import Any

import grpc
import uvloop

from millwheel.cli.certificate_files import CertificateAuthority, CertificateRequest, utc_now
from millwheel.rpc.access.authorization import Authorization
from millwheel.rpc.identity import TlsFiles
from millwheel.rpc.security import client_credentials
from millwheel.rpc.server import bind, create_server
from millwheel.rpc.v1 import delivery_pb2
from millwheel.rpc.v1.delivery_pb2_grpc import (
    DeliveryServiceServicer,
    DeliveryServiceStub,
    add_DeliveryServiceServicer_to_server,
)
from millwheel.server.access import DEFAULT_POLICY, FixedPolicy

SENDER = delivery_pb2.Sender(name="injector/shop/orders/p", group="injector/shop/orders")
BATCH = delivery_pb2.DeliverRequest(
    stream="shop/orders",
    sender=SENDER,
    keys=[b"key"] * 100,
    values=[b"x" * 50] * 100,
    timestamps_us=[1] * 100,
    positions=delivery_pb2.PositionIds(sequence="shop/orders/p/s1", positions=range(100)),
)


class Echo(DeliveryServiceServicer):
    """Answers each batch."""

    async def Deliver(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:
        async for request in request_iterator:
            yield delivery_pb2.DeliverResponse(token=request.token)


def issued(folder: Path, name: str, role: str) -> TlsFiles:
    """A certificate that names a role."""
    authority = CertificateAuthority.open(folder, "bench", 2, utc_now())
    made = authority.issue(CertificateRequest(name, (role,), ("localhost", "127.0.0.1")), 1, utc_now(), True)
    return TlsFiles(folder / "ca.pem", made.cert, made.key)


async def seconds(address: str, files: TlsFiles, batches: int) -> float:
    """CPU seconds of this process until all batches of a stream are answered."""
    async with grpc.aio.secure_channel(address, client_credentials(files)) as channel:

        async def sent() -> AsyncIterator[Any]:
            for _ in range(batches):
                yield BATCH

        began = process_time()
        async for _ in DeliveryServiceStub(channel).Deliver(sent()):
            pass
        return process_time() - began


async def main(batches: int, rounds: int) -> None:
    """Print the microseconds for a batch, by the way."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        process, injector = issued(folder, "worker", "process"), issued(folder, "source", "inject")
        addresses, servers = {}, []
        for name, interceptors in (("without", []), ("with", [Authorization(FixedPolicy(DEFAULT_POLICY))])):
            server = create_server(interceptors)
            add_DeliveryServiceServicer_to_server(Echo(), server)  # type: ignore[abstract]  # one call alone
            addresses[name] = bind(server, tls=process)
            await server.start()
            servers.append(server)
        ways = {"no roles": ("without", process), "a process": ("with", process), "an injector": ("with", injector)}
        taken: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, (server_name, files) in ways.items():
                taken[way].append(await seconds(addresses[server_name], files, batches))
        for way, all_taken in taken.items():
            print(f"{way:12} {min(all_taken) / batches * 1e6:8.2f} us for a batch of 100 records")
        for server in servers:
            await server.stop(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    uvloop.run(main(given.batches, given.rounds))
