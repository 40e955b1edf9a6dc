"""What a server does not load when it starts: libraries of parts that it does not use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.patience import patience

_UNUSED: Final = ("cryptography", "jwt", "obstore", "cassandra", "numpy")
"""Of TLS, tokens, snapshots, a cluster's store and windows by columns. They took a
quarter of the time of all imports."""

_PROGRAM: Final = """
import asyncio, sys
from pathlib import Path
from millwheel.server.dev_server import DevSettings, running

async def start():
    async with running(DevSettings(db=Path(sys.argv[1]), port=0, ui_port=0, columns=False)) as server:
        print(*sorted({name.partition(".")[0] for name in sys.modules}))

asyncio.run(start())
"""


def test_a_server_without_tls_and_cassandra_loads_neither(tmp_path: Path) -> None:
    started = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path / "db")], capture_output=True, text=True, timeout=patience(30)
    )
    assert started.returncode == 0, started.stderr
    loaded = started.stdout.split()
    assert "millwheel" in loaded
    assert [name for name in _UNUSED if name in loaded] == []
