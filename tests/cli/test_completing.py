"""Completion of names, as a shell asks for it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path

from deploy.local.child import free_ports
from tests.cli.test_topology import Cli
from tests.cli.test_topology import cli as cli  # the fixture
from tests.patience import patience, until

PROGRAM = Path(__file__).with_name("sample.py")
SCRIPT = """
eval "$(millwheel --show-completion bash)"
COMP_WORDS=(millwheel "$@"); COMP_CWORD=$#
_millwheel_completion millwheel
printf '%s\\n' "${COMPREPLY[@]}"
"""


async def completed(address: str, *words: str) -> list[str]:
    """The candidates that bash shows for the last word. Nothing is printed beside them."""
    environment = {**os.environ, "MILLWHEEL_ADDRESS": address}
    environment["_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"] = "1"
    shell = await asyncio.create_subprocess_exec(
        *("bash", "-c", SCRIPT, "bash", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    out, err = await asyncio.wait_for(shell.communicate(), patience(30))
    assert err == b"", err.decode()
    return out.decode().split()


async def completes(address: str, words: tuple[str, ...], candidates: list[str]) -> None:
    """Complete until the server has answered within the deadline. A busy machine may be late."""
    await until(lambda: completed(address, *words), holds=lambda found: found == candidates)


async def test_the_shell_completes_names(cli: Cli) -> None:
    submitted = await cli("topology", "submit", f"{PROGRAM}:good")
    assert submitted.code == 0, submitted.err
    for words, candidates in (
        (("topology", "describe", ""), ["sample"]),
        (("key", "list", "sa"), ["sample/counter"]),
        (("stream", "tail", "sa"), ["sample/counts", "sample/dead-letters", "sample/queries"]),
        (("stream", "produce", "que"), ["queries"]),
        (("interval", "list", "sample"), ["sample", "sample/counter"]),
    ):
        await completes(cli.address, words, candidates)
    await completes("127.0.0.1:1", ("topology", "describe", "--address", cli.address, ""), ["sample"])
    listed = await cli("interval", "list", "sample/counter", "-o", "json")
    (journal,) = [one["journal"] for one in json.loads(listed.out)]
    await completes(cli.address, ("interval", "move", journal[:-1]), [journal])


async def test_completion_is_silent_where_no_server_answers() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        for address in (f"127.0.0.1:{free_ports(1)[0]}", f"127.0.0.1:{mute.getsockname()[1]}", "no such host"):
            assert await completed(address, "topology", "describe", "") == []
