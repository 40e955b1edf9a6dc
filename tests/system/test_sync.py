"""What a subscriber is shown is on disk, as the kernel sees it: append, fdatasync, delivery (G1, G2; 6.1.1)."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.system.server import Server
from tests.system.speaking import SOURCE, read, speak, submit_source
from tests.system.words import Seen

MARKER = "rabiznaz"
"""Only the result has it; the word that is sent is the reverse."""

REVERSED = SOURCE.replace("Seen(text, state.times)", "Seen(text[::-1], state.times)")
CALLS = "write,writev,pwrite64,pwritev,sendmsg,sendto,fsync,fdatasync,sync_file_range"
WRITES, SYNCS, SENDS = {"write", "writev", "pwrite64", "pwritev"}, {"fsync", "fdatasync"}, {"sendmsg", "sendto"}

_LINE = re.compile(r"(?P<pid>\d+) +(?P<time>[\d.]+) (?:<\.\.\. )?(?P<call>\w+)(?: resumed>|\()(?P<rest>.*)")


@dataclass
class Call:
    """One system call; ``start`` and ``end`` are its places in the trace."""

    name: str
    text: str
    start: int
    end: int

    @property
    def file(self) -> str:
        found = re.match(r"\d+<([^>]*)>", self.text)
        return found[1] if found else ""


def calls(trace: str) -> Iterator[Call]:
    """The calls of a trace, each with its beginning and end put together."""
    begun: dict[str, Call] = {}
    for number, line in enumerate(trace.splitlines()):
        found = _LINE.match(line)
        if found is None:
            continue
        if "<unfinished ...>" in line:
            begun[found["pid"]] = Call(found["call"], found["rest"], number, number)
        elif " resumed>" in line and found["pid"] in begun:
            call = begun.pop(found["pid"])
            yield Call(call.name, call.text + found["rest"], call.start, number)
        else:
            yield Call(found["call"], found["rest"], number, number)


@pytest.mark.guarantee("G1", section="6.1.1")
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
async def test_a_result_is_synced_between_its_append_and_its_delivery(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    wrapper = ["strace", "-D", "-f", "-yy", "-ttt", "-s", "8192", "-e", f"trace={CALLS}", "-o", str(trace)]
    server = Server(tmp_path / "db", tmp_path / "server.log", wrapper=wrapper)
    try:
        await server.start()
        await submit_source(server, "words", REVERSED)
        await speak(server, MARKER[::-1])
        assert await read(server, "seen", Seen, 1) == [Seen(MARKER, 1)]
        await server.stop()
    finally:
        await server.kill()
    seen = sorted(calls(trace.read_text(errors="replace")), key=lambda call: call.start)
    marked = [call for call in seen if MARKER in call.text]
    shown = next(call for call in marked if call.name in SENDS | WRITES and "TCP" in call.text)
    appends = [call for call in marked if call.name in WRITES and call.file.endswith(".log") and call.end < shown.start]
    assert len(appends) >= 2, "the computation's commit, and the log's"
    for append in appends:
        syncs = [one for one in seen if one.name in SYNCS and one.file == append.file and one.start > append.end]
        assert syncs, "an append without a sync"
        assert syncs[0].end < shown.start, "shown before it was on disk"
        for call in (append, syncs[0]):
            print(f"{call.start:>7}  {call.name:<10} {Path(call.file).name}")
    print(f"{shown.start:>7}  {shown.name:<10} to the subscriber")
