"""A link can be cut and slowed for one process. Data that was under way arrives later, complete."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from deploy.local.child import free_ports
from tests.faults.links import Links, owner, through
from tests.patience import patience


@asynccontextmanager
async def echoed(name: str) -> AsyncIterator[tuple[Links, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection, through links, to a server that says everything again; this process is called ``name``."""
    (port,) = free_ports(1, "0.0.0.0")
    echoes: set[asyncio.Task[None]] = set()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1_000):
            writer.write(data)
        writer.close()
        await writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        echoes.add(asyncio.ensure_future(echo(reader, writer)))

    async with await asyncio.start_server(accept, "127.0.0.1", port):
        async with Links(lambda: {name: os.getpid()}) as links:
            await links.link("echo", f"127.0.0.1:{port}")
            reader, writer = await asyncio.open_connection(through("127.0.0.1"), port)
            try:
                yield links, reader, writer
            finally:
                writer.close()
        # The links are closed, so each echo ends. One that is left to the collector fails another test.
        await asyncio.gather(*echoes)


async def said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: bytes, within: float) -> bytes:
    writer.write(text)
    try:
        return await asyncio.wait_for(reader.readexactly(len(text)), within)
    except TimeoutError:
        return b""


async def test_a_cut_link_keeps_its_bytes_until_it_is_restored() -> None:
    async with echoed("worker 1") as (links, reader, writer):
        assert await said(reader, writer, b"one", 2.0) == b"one"
        links.cut("worker 1", "echo")
        assert await said(reader, writer, b"two", 0.2) == b""
        links.mend()
        assert await asyncio.wait_for(reader.readexactly(3), patience(2.0)) == b"two"


async def test_the_links_of_another_process_are_not_concerned() -> None:
    async with echoed("worker 1") as (links, reader, writer):
        links.cut("worker 2", "echo")
        links.cut("worker 1", "etcd *")
        assert await said(reader, writer, b"one", 2.0) == b"one"


async def test_a_slow_link_takes_longer() -> None:
    async with echoed("worker 1") as (links, reader, writer):
        loop = asyncio.get_running_loop()
        links.slow("worker *", "echo", 0.1)
        began = loop.time()
        assert await said(reader, writer, b"one", 2.0) == b"one"
        assert loop.time() - began >= 0.2


async def test_the_end_of_one_side_is_reported_to_the_other() -> None:
    async with echoed("worker 1") as (_, reader, writer):
        assert await said(reader, writer, b"one", 2.0) == b"one"
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), patience(2.0)) == b""


async def test_who_cuts_learns_what_is_cut() -> None:
    async with echoed("worker 1") as (links, reader, writer):
        assert await said(reader, writer, b"one", 2.0) == b"one"
        assert links.cut("worker 2", "*") == set()
        assert links.slow("worker 1", "echo", 0.01) == {"echo"}
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), patience(2.0)) == b""
        await asyncio.sleep(0.05)
        assert links.cut("worker 1", "echo") == set()


_OTHER = """
import socket, sys
with socket.socket() as connection:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    connection.bind(("127.0.0.1", 0))
    connection.connect(("127.0.0.1", int(sys.argv[1])))
    print(connection.getsockname()[1], flush=True)
    sys.stdin.read()
"""


async def test_processes_connected_from_one_port_are_distinguished() -> None:
    """Cassandra's nodes have one port at several addresses, and the system may use one local port for each.

    A cut from Cassandra missed a node, because its connection counted as another process's.
    """
    (port,) = free_ports(1, "0.0.0.0")
    with socket.create_server(("127.0.0.1", port)), socket.create_server(("127.0.0.3", port)), socket.socket() as here:
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", _OTHER, str(port), stdin=pipe, stdout=pipe)
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            shared = int(await child.stdout.readline())
            here.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            here.bind(("127.0.0.1", shared))
            here.connect(("127.0.0.3", port))
            pids = {"here": os.getpid(), "there": child.pid}
            assert owner(("127.0.0.1", shared), ("127.0.0.3", port), pids) == "here"
            assert owner(("127.0.0.1", shared), ("127.0.0.1", port), pids) == "there"
        finally:
            child.stdin.close()
            await child.wait()
