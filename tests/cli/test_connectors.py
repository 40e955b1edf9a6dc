"""``millwheel connectors``: those that are installed, and those of running topologies."""

from __future__ import annotations

import inspect
import json
import pkgutil
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from typer.testing import CliRunner

from millwheel import connectors
from millwheel.cli.connector_names import BUILT_IN, name_of
from millwheel.cli.connector_rows import connector_row, first_part, listed_row, print_rows
from millwheel.cli.connectors import app
from millwheel.client.control import ControlClient
from millwheel.connectors.reading import SplitState
from millwheel.model.time import MAX_TIMESTAMP
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import cluster_pb2 as wire
from millwheel.rpc.v1 import key_pb2 as keys
from tests.console import auctions
from tests.house.tree import ROOT
from tests.patience import patience, until
from tests.submitting import submit_copy
from tests.system.server import Server, run_cli


def announce(folder: Path) -> None:
    """What the installation of a package leaves in a folder of the path."""
    about = folder / "shop_bus-1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: shop-bus\nVersion: 1.2\n")
    (about / "entry_points.txt").write_text("[millwheel.connectors]\nbus = shop_bus:Topic\n")


def test_an_installed_package_announces_its_connectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    announce(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    found = json.loads(CliRunner().invoke(app, ["list", "-o", "json"]).stdout)
    (bus,) = (one for one in found if one["name"] == "bus")
    assert (bus["package"], bus["version"], bus["import"], bus["kind"]) == ("shop-bus", "1.2", "shop_bus:Topic", None)
    table = CliRunner().invoke(app, ["list"]).stdout
    assert "bus" in table
    assert "shop_bus:Topic" in table


def test_each_connector_of_the_library_is_listed() -> None:
    """Regression: the list said that there were none, while a dozen are part of the library."""
    modules = ["", *(f"{one.name}." for one in pkgutil.iter_modules(connectors.__path__) if one.ispkg)]
    functions = set[str]()
    for prefix in modules:
        module = import_module(f"millwheel.connectors.{prefix}".rstrip("."))
        functions |= {f"{prefix}{name}" for name in module.__all__ if inspect.isfunction(getattr(module, name))}
    again = {"delta.write_delta", "files.read_files", "files.write_files"}  # they are in millwheel.connectors, too
    assert {one.name for one in BUILT_IN} == functions - again - {"postgres.connecting"}
    listed = {one["name"]: one for one in json.loads(CliRunner().invoke(app, ["list", "-o", "json"]).stdout)}
    for one in BUILT_IN:
        module_name, _, function = listed[one.name]["import"].partition(":")
        assert inspect.isfunction(getattr(import_module(module_name), function))
        place, _, kind = f"millwheel.connectors.{one.runs}".partition(":")
        assert inspect.isclass(getattr(import_module(place), kind)), one.runs
        assert one.name in name_of(f"{place}:{kind}")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {one.extra for one in BUILT_IN} - {""} <= extras.keys()
    assert all(listed[one.name]["installed"] for one in BUILT_IN), "here, all extras are"


def test_a_missing_extra_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millwheel.cli.extras.find_spec", lambda name: None if name == "redis" else object())
    lines = CliRunner().invoke(app, ["list"]).stdout.splitlines()
    (redis,) = (line for line in lines if line.startswith("redis.source"))
    assert redis.endswith("redis: install openmillwheel[redis]")
    (files,) = (line for line in lines if line.startswith("read_files"))
    assert files.endswith("arrow for Parquet: installed")


def test_a_source_whose_splits_cannot_be_found_fails() -> None:
    """Regression: it was said to run, with no split. A wrong address of a broker is like that."""
    finds = wire.ComputationOverview(
        name="bids-splits", connector=wire.CONNECTOR_PART_FINDS_SPLITS, outputs=["auctions/bids.splits"]
    )
    finds.failures.text = "no broker answers at kafka:9092"
    reads = wire.ComputationOverview(name="bids-reader", connector=wire.CONNECTOR_PART_READS)
    reads.inputs.add(stream="auctions/bids.splits")
    topology = wire.TopologyOverview(name="auctions", computations=[reads, finds])
    row = connector_row("auctions", reads, first_part(topology, reads), [])
    assert (row["parts"], row["error"]) == (0, "no broker answers at kafka:9092")


def test_bad_records_and_the_end_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Regression: a wrong `timestamp=` sent all records to the bad stream, and nothing said so."""
    reads = wire.ComputationOverview(
        name="bids-reader",
        connector=wire.CONNECTOR_PART_READS,
        implementation="millwheel.connectors.files.source:_FilesSource",
    )
    reads.watermark.low_watermark_us = MAX_TIMESTAMP
    key = keys.OwnedKey()
    key.listed.state_text = msgspec.json.encode(SplitState(records=38, bad=38, read_at=1)).decode()
    row = connector_row("auctions", reads, wire.ComputationOverview(), [key])
    assert (row["records"], row["bad"], row["connector"], row["complete"]) == (38, 38, "read_files", True)
    assert name_of("shop.bus:Topic") == "shop.bus:Topic"
    print_rows([row], 2)
    shown = capsys.readouterr().out
    assert shown.splitlines()[1].split()[-1] == "ended"
    assert "auctions/bids: 38 of the 38 records cannot be read" in shown


class Opening:
    """A client of a master whose worker is still opening the interval that it is asked for."""

    async def call(self, *_: object) -> None:
        raise RequestError(FailureCode.UNAVAILABLE, "this worker owns journal 'table', but does not serve it")


async def test_what_cannot_be_listed_is_not_known() -> None:
    """Regression: while an interval of one sink was being opened, the command failed and showed no connector."""
    writes = wire.ComputationOverview(name="table", connector=wire.CONNECTOR_PART_WRITES)
    row = await listed_row(cast(ControlClient, Opening()), "auctions", writes, wire.ComputationOverview())
    assert (row["parts"], row["records"], row["failing"]) == (None, None, None)
    assert "does not serve it" in row["unlisted"]


async def test_running_sources_and_sinks_are_listed(tmp_path: Path) -> None:
    async with Server(tmp_path / "db", tmp_path / "server.log") as server:
        await submit_copy(server.address, auctions.__file__, "auctions", tmp_path)

        async def listed() -> dict[str, dict[str, Any]]:
            answer = await run_cli(server.address, "connectors", "show", "auctions", "-o", "json")
            assert answer.code == 0, answer.err
            return {one["name"]: one for one in json.loads(answer.out)}

        def is_written(found: dict[str, dict[str, Any]]) -> bool:
            return found["auctions/bids-table"]["records"] == 620 and found["auctions/bids"]["error"] is not None

        found = await until(listed, patience(60), holds=is_written)
        source, sink = found["auctions/bids"], found["auctions/bids-table"]
        assert (source["kind"], source["parts"], source["ended"], source["records"]) == ("source", 3, 0, 620)
        assert (source["behind_records"], source["failing"]) == (380, 1)
        assert "the night has no server" in source["error"]
        assert (sink["kind"], sink["parts"], sink["ended"], sink["error"]) == ("sink", 1, None, None)
        table = await run_cli(server.address, "connectors", "show")
        assert "auctions/bids: computation auctions/bids-reader: 1 key is blocked" in table.out
        assert "3 splits" in table.out
        streams = await run_cli(server.address, "stream", "list", "-o", "json")
        assert [one["stream"] for one in json.loads(streams.out)] == ["auctions/bids"]
        streams = await run_cli(server.address, "stream", "list", "--all", "-o", "json")
        inner = {one["stream"] for one in json.loads(streams.out) if one["inner"]}
        assert inner == {"auctions/bids.splits", "auctions/bids-table.batches"}
        shown = await run_cli(server.address, "watermark", "show", "-o", "json")
        assert {one["name"]: one["connector"] for one in json.loads(shown.out)} == {
            "bids-splits": "splits",
            "bids-reader": "source",
            "bids-table-batches": "batches",
            "bids-table": "sink",
        }
