"""The README's program, commands and snippets, taken literally, as a newcomer takes them."""

from __future__ import annotations

import importlib.util
import re
import shlex
import textwrap
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import millwheel as mw
from tests.system.server import ROOT, Server, run_cli

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER = mw.Timestamp(mw.from_datetime(NOW) + mw.seconds(2))


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def snippet(part: str) -> str:
    (found,) = [block for block in blocks("python") if part in block]
    return found


def commands(noun: str) -> list[list[str]]:
    """The README's ``millwheel`` commands of a noun, without the program's name."""
    lines = [line[2:] for block in blocks("console") for line in block.splitlines() if line.startswith("$ millwheel ")]
    split = [shlex.split(line, comments=True)[1:] for line in lines]
    return [words for words in split if words[0] == noun]


def program(place: Path) -> dict[str, Any]:
    """The first program of the README, as a file, and what is in it."""
    path = place / "zeitgeist.py"
    path.write_text(blocks("python")[0])
    spec = importlib.util.spec_from_file_location("readme_zeitgeist", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return vars(module)


def test_the_test_without_a_server_holds_in_virtual_time(tmp_path: Path) -> None:
    exec(snippet("TopologyHarness"), {**program(tmp_path), "timestamp": mw.from_datetime(NOW)})


async def test_every_command_does_what_is_said(server: Server, tmp_path: Path) -> None:
    names = program(tmp_path)
    (submit,), (tail,), (explain,), (inspect,), (inject,) = map(
        commands, ("topology", "stream", "watermark", "key", "inject")
    )
    target = str(tmp_path / submit.pop())
    told = await run_cli(server.address, *submit, target)
    assert (told.code, told.out) == (0, "topology zeitgeist is running (version 1)\n"), told.err

    feeding = snippet("async with Injector").replace("127.0.0.1:7433", server.address)
    exec("async def feed(now, watermark):\n" + textwrap.indent(feeding, "    "), names)
    await names["feed"](NOW, LATER)

    told = await run_cli(server.address, *tail, "-n", "1")
    assert '{"text":"cat videos","queries":1}' in told.out, told.err
    told = await run_cli(server.address, *explain)
    assert "low watermark of zeitgeist/window-counter: 2026-01-02T03:04:07Z" in told.out, told.err
    assert "injector process 'web-1'" in told.out
    told = await run_cli(server.address, *inspect)
    assert told.code == 0, told.err
    assert "cat videos" in told.out

    (file,) = [word for word in inject if word.endswith(".jsonl")]
    (tmp_path / file).write_text('{"text": "cat videos", "at": 1700000000}\n')
    told = await run_cli(server.address, *[str(tmp_path / word) if word == file else word for word in inject])
    assert (told.code, told.out) == (0, "1 record injected into queries, 1 late\n"), told.err


async def test_the_server_takes_the_options_shown() -> None:
    ((_, verb, *options),) = commands("server")
    told = await run_cli("", "server", verb, "--help")
    assert all(option in told.out for option in options if option.startswith("--"))
