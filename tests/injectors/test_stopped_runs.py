"""How a run of the file injector goes on after a line has stopped it (5.2)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from millwheel.server.dev_server import DevServer
from tests.injectors.conftest import Submit
from tests.injectors.test_files import command, line, numbers
from tests.injectors.test_with_server import everything


@pytest.mark.guarantee("G1", section="5.2")
async def test_a_line_that_stopped_a_run_may_be_corrected_in_place(
    server: DevServer, submit: Submit, tmp_path: Path
) -> None:
    """As the message says: no line after it was injected, so the lines that move are new ones."""
    await submit("shop")
    options = ["--timestamp", "t", "--unit", "us", "--process", "cli", "--finish"]
    for middle, expected in (("no\n", 5), (line(3), 0)):
        (tmp_path / "a.jsonl").write_text(line(1) + line(2) + middle + line(4))
        code, _, errors = await command(server, "inject", "file", "orders", str(tmp_path / "a.jsonl"), *options)
        assert code == expected, errors
    assert numbers(await everything(server.address, "echo")) == Counter([1, 2, 3, 4])
