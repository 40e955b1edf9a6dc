"""``millwheel event list`` against a real server: what happened, by whom, and what is selected."""

from __future__ import annotations

from pathlib import Path

from millwheel.cli.event import plain_event, row_texts
from millwheel.rpc.v1 import catalog_pb2 as catalog
from tests.patience import patience, until
from tests.system.server import Server, run_cli

PROGRAM = """
import millwheel as mw

class Count(mw.Computation[str, int]):
    def process_record(self, ctx: mw.Context[int], record: mw.Record[str]) -> None:
        ctx.state += 1

words = mw.Topology("words")
words.source("spoken", str)
words.add(Count, name="count", inputs={"spoken": mw.key(lambda word: word)})
"""


async def test_events_are_listed_the_newest_first(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    async with Server(tmp_path / "db", tmp_path / "log") as server:

        async def shown(*arguments: str) -> list[str]:
            made = await run_cli(server.address, *arguments)
            assert made.code == 0, made.err
            return made.out.splitlines()

        await shown("topology", "submit", f"{program}:words")
        await shown("topology", "pause", "words")
        await until(lambda: shown("event", "list", "--kind", "worker"), patience(20), holds=lambda rows: len(rows) == 2)
        head, *rows = await shown("event", "list", "words")
        assert head.split() == ["AT", "KIND", "BY", "EVENT", "BEFORE", "AFTER"]
        assert [row.split()[1] for row in rows] == ["topology.paused", "topology.submitted"]
        assert rows[0].split()[2] == "127.0.0.1"
        assert rows[0].split()[-2:] == ["running", "paused"]
        assert len(await shown("event", "list", "words", "--limit", "1")) == 2
        assert len(await shown("event", "list", "words", "--since", "1h", "--kind", "topology.p")) == 2
        assert await shown("event", "list", "other") == ["no events"]


def test_a_row_names_the_owners_of_assigned_intervals() -> None:
    """Regression: intervals went "to other owners", and only the console said to which."""
    event = catalog.EventRecord(kind="intervals.assigned", text="9 intervals get an owner")
    event.owners.add(after="worker-1.0", intervals=9)
    assert row_texts(plain_event(event))[2] == "9 from no worker to worker-1.0"


def test_a_long_text_is_cut_in_a_row() -> None:
    """Regression: one long error of a hook made the table 300 columns wide."""
    assert row_texts({"text": "error\n" * 100, "before": None, "after": "y" * 120}) == [
        ("error " * 20)[:119] + "…",
        "",
        "y" * 120,
    ]
