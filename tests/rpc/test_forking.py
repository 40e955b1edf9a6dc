"""A program that holds a client can start others: a Spark driver starts its Java gateway.

``python -m tests.rpc.test_forking NUMBER`` starts programs beside calls that go on, and prints how each ended.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import grpc

from tests.patience import patience

METHOD = "/tests.Forking/Echo"


async def echo(request: bytes, context: object) -> bytes:
    return request


def started() -> int:
    """The status of a program that was started by a fork: the hook keeps ``subprocess`` from a quicker way."""
    return subprocess.run(["true"], preexec_fn=os.getpid, check=False, timeout=patience(20)).returncode


async def main(number: int) -> None:
    server = grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("tests.Forking", {"Echo": method})])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(METHOD, request_serializer=None, response_deserializer=None)

        async def go_on() -> None:
            while True:
                await call(b"x" * 100)

        async with asyncio.TaskGroup() as group:
            calling = [group.create_task(go_on()) for _ in range(4)]
            await asyncio.sleep(0.2)
            for _ in range(number):
                print(started(), flush=True)
                await asyncio.sleep(0.01)
            for task in calling:
                task.cancel()
    await server.stop(0)


NUMBER = 40


def test_what_is_forked_beside_calls_runs() -> None:
    command = [sys.executable, "-m", "tests.rpc.test_forking", str(NUMBER)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=patience(60), check=False)
    assert shown.stdout.split() == ["0"] * NUMBER, shown.stderr[-2000:]


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
