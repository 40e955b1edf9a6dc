"""Every code block of the documentation works: programs run, commands succeed, settings load.

New blocks are found automatically. A new page needs an entry in ``CONTINUES`` if it builds on the README. It needs one
in ``FILES`` if it reads files.

Each page is read in a process of its own: a page that uses Spark starts a Java process, whose directory and environment
cannot change. These processes are forks of one that has all modules loaded, and has used none of them.
``python -m tests.documents.test_pages PAGE DIRECTORY`` reads one page.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from millwheel.config import load
from millwheel.config.access_policy import read_policy
from tests.connectors.postgres_tables import Database
from tests.documents.blocks import LANGUAGES, Block, blocks_of, commands_of, pages
from tests.documents.reader import Reader
from tests.house.tree import ROOT, text_files
from tests.patience import patience

ALL = {str(page.relative_to(ROOT)): blocks_of(page) for page in pages()}
ELSEWHERE = {
    "docs/backups.md": "tests/snapshots/test_lost_disks.py runs it, and deletes the data in between",
    "docs/cassandra.md": "tests/connectors/cassandra/test_sink.py runs it, with a node",
    "docs/mqtt.md": "tests/connectors/test_mqtt.py runs it, with a broker",
    "docs/redis.md": "tests/connectors/test_redis_sinks.py runs it, with a server",
    "docs/kafka.md": "tests/connectors/kafka/test_page.py runs it, with a broker",
    "docs/pipeline.md": "tests/system/test_pipeline.py runs it, and kills the server and the broker",
}
"""Pages that another test runs."""
RUN = sorted(
    name
    for name, blocks in ALL.items()
    if {one.language for one in blocks} & {"python", "console"} and name not in ELSEWHERE
)

CLUSTER = "needs a cluster of several machines or daemons: tests/daemons runs them"
ITSELF = "it runs this test, or takes minutes: CI runs it"
RELEASES = "it makes a release"
INSTALLS = "it installs what this test runs in"

NOT_RUN = {
    "make demo": "takes minutes: tests/examples/zeitgeist runs its parts",
    "make test": ITSELF,
    "make lint": ITSELF,
    "make format": "it changes the checkout",
    "make proto": "it changes the checkout",
    "make man": "it changes the checkout",
    "make runbook": "it changes the checkout",
    "make constraints": "it changes the checkout",
    "make bench": "takes minutes",
    "make bench-peers": "takes half an hour, and installs other systems",
    "make bench-nexmark": "takes ten minutes, and installs other systems",
    "make bench-full": "takes half an hour, and changes the checkout",
    "make coverage": ITSELF,
    "make dist": "takes minutes: CI runs it, and tests/release tries what it builds",
    "make test-compiled": "takes minutes, and needs a compiler",
    "make test-mutations": "takes hours",
    "make test-faults": "takes a quarter of an hour",
    "make test-upgrade": "takes ten minutes",
    "make test-alerts": "takes ten minutes",
    "make test-deploy": "takes minutes",
    "make test-image": "takes minutes, and needs root",
    "make soak": "takes half an hour",
    "make kafka-endurance": "takes ten minutes",
    'git commit -a -m "Release 0.1.0"': RELEASES,
    'git tag -a v0.1.0 -m "Version 0.1.0"': RELEASES,
    "git push origin main v0.1.0": RELEASES,
    "pipx run twine upload dist/*.tar.gz dist/*-none-any.whl": RELEASES,
    "make install": INSTALLS,
    "make install && source .venv/bin/activate": INSTALLS,
    "pip install '.[arrow]' pandas": INSTALLS,
    "pip install '.[spark]'": INSTALLS,
    'python compile_spark.py $(python -c "import pyspark; print(pyspark.__path__[0])")/python/lib/*.zip': (
        "it changes the installation: tests/spark/test_first_batch.py tries it"
    ),
    'make test ARGS="tests/model -k split"': ITSELF,
    ".venv/bin/pytest -s tests/system/test_sync.py": ITSELF,
    "make test-restarts": "takes minutes",
    "make test-restarts RESTARTS=1000 SEED=5": "takes hours",
    "make cluster": "takes minutes: tests/daemons has its parts",
    "make cluster NODES=3 CHAOS=1": "takes minutes",
    "make cluster KEEP=1": "takes minutes",
    "millwheel master run": CLUSTER,
    "millwheel authority run": CLUSTER,
    "millwheel worker run --worker-processes 4": CLUSTER,
    "export MILLWHEEL_ADDRESS=mw-1:7433,mw-2:7433": "names machines that are not there",
}
"""Commands that are not run, and why."""

OTHERS = {
    "docker": "needs a container engine: tests/deploy and tests/image run the same as processes",
    **dict.fromkeys(("helm", "kubectl"), "needs a Kubernetes cluster: tests/deploy runs the chart's pods as processes"),
    **dict.fromkeys(
        ("apt-get", "python3", "MILLWHEEL_COMPILE=1", "install", "systemd-sysusers", "systemctl"),
        "it changes the machine: tests/deploy tries the units",
    ),
}
"""Programs whose commands on the page on deploying are not run, and why."""

NOT_RUN |= {
    command.text: OTHERS[program]
    for block in ALL["docs/deploying.md"]
    if block.language == "console"
    for command in commands_of(block)
    if (program := command.text.split()[0]) in OTHERS
}

WITH_SERVER = ("zeitgeist.py", "millwheel server start-dev", "millwheel topology submit")
"""The start of a page that continues the README: the README's program, and the server that runs it."""

CONTINUES = (
    "docs/http.md",
    "docs/injectors.md",
    "docs/lookups.md",
    "docs/snapshots.md",
    "docs/subscriptions.md",
    "docs/testing.md",
    "docs/topologies.md",
)
"""Pages that need the README's program and server."""

QUERY = {"text": "cat videos", "at": 1_700_000_000}
FLIGHT = {"id": "UA-1", "carrier": "UA", "scheduled": "2013-01-01T10:15:00Z"}
FILES = {
    "queries.jsonl": QUERY,
    "rows/1.json": {**QUERY, "id": "1", "at": "2023-11-14T22:13:20Z"},
    "flights/1.json": FLIGHT,
}
"""Files that a reader has, with the one line in each."""


SERVICES = "services.conf"
"""The file of libpq that says where a page's database is, if it names one."""


def read(page: str, desk: Path) -> None:
    """Run every block of a page, in the order of the page. Raises the first failure."""
    if (desk / SERVICES).exists():
        os.environ["PGSERVICEFILE"] = str(desk / SERVICES)
    for name, line in FILES.items():
        (desk / name).parent.mkdir(exist_ok=True)
        (desk / name).write_text(json.dumps(line) + "\n")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_SUBMIT_ARGS"] = (
        "--master local[2] --driver-memory 768m --conf spark.ui.enabled=false "
        "--conf spark.driver.host=127.0.0.1 --conf spark.sql.shuffle.partitions=2 "
        "--driver-java-options '-XX:TieredStopAtLevel=1 -XX:+UseSerialGC' pyspark-shell"
    )
    with Reader(desk) as reader, warnings.catch_warnings():
        if any("spark" in block.code for block in ALL[page]):
            warnings.simplefilter("ignore")
        if page in CONTINUES:
            _read_on(reader)
        for block in ALL[page]:
            if block.language == "python":
                reader.run_python(block)
            elif block.language == "console":
                reader.type_commands(block, NOT_RUN)


@contextmanager
def prepared(page: str, desk: Path) -> Iterator[None]:
    """Make the database that a page names, and say where it is as libpq wants to know it."""
    if page != "docs/postgresql.md":
        yield
        return
    database = Database()
    try:
        where = database.conninfo.replace(" ", "\n")
        (desk / SERVICES).write_text(f"[shop]\n{where}\n")
        yield
    finally:
        database.remove()


def _read_on(reader: Reader) -> None:
    for block in ALL["README.md"]:
        if block.file in WITH_SERVER:
            reader.run_python(block)
        elif block.language == "console":
            others = {one.text for one in commands_of(block) if not one.text.startswith(WITH_SERVER)}
            reader.type_commands(block, others)


def read_apart(page: str, desk: Path, printed: Path) -> None:
    """Run a page in this process, which is its own. ``printed``: the file for its output, and for what failed."""
    with printed.open("wb") as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
    read(page, desk)


@pytest.fixture(scope="module")
def loaded() -> ForkServerContext:
    """Starts processes that have this module loaded."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", RUN)
def test_every_example_on_a_page_works(page: str, tmp_path: Path, loaded: ForkServerContext) -> None:
    desk, printed = tmp_path / "desk", tmp_path / "printed"
    desk.mkdir()
    printed.touch()
    with prepared(page, desk):
        reader = loaded.Process(target=read_apart, args=(page, desk, printed))
        reader.start()
        try:
            reader.join(patience(280))
            assert reader.exitcode == 0, printed.read_text()[-16_000:]
        finally:
            reader.kill()
            reader.join()


def test_every_block_names_its_language() -> None:
    assert [str(block) for block in _blocks() if block.language not in LANGUAGES] == []


def test_every_console_line_is_a_command_or_follows_one() -> None:
    first = {str(block): block.code.splitlines()[0] for block in _blocks("console")}
    assert {place: line for place, line in first.items() if not line.startswith("$ ")} == {}


def test_commands_that_are_not_run_are_on_a_page() -> None:
    printed = {command.text for block in _blocks("console") for command in commands_of(block)}
    assert set(NOT_RUN) - printed == set()


@pytest.mark.parametrize(
    "block", [block for blocks in ALL.values() for block in blocks if block.language == "toml"], ids=str
)
def test_settings_load(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "millwheel.toml"
    file.write_text(block.code)
    if "[[grants]]" in block.code:
        read_policy(file)
    else:
        load(file)


def test_json_is_json() -> None:
    for block in _blocks("json"):
        json.loads(block.code)


def test_unpublished_packages_are_not_called_published() -> None:
    claim = re.compile(r"pip install (-\S+ )*['\"]?openmillwheel")
    assert [str(path) for path in text_files() if path != Path(__file__) and claim.search(path.read_text())] == []


def _blocks(language: str = "") -> list[Block]:
    return [block for blocks in ALL.values() for block in blocks if language in ("", block.language)]


if __name__ == "__main__":
    with prepared(sys.argv[1], Path(sys.argv[2])):
        read(sys.argv[1], Path(sys.argv[2]))
