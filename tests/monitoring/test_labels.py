"""The labels of all metrics are names that people gave, addresses, and words: never ids of the system."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from deploy.local.child import free_ports
from tests.monitoring import shop as program
from tests.monitoring.incidents import Shop, program_page
from tests.patience import patience, until
from tests.submitting import submit_copy
from tests.system.server import Server, run_cli

INTERNAL = re.compile(r"\.j?\d+$|\.j\d+|/s\d+$|^injector/|^[0-9a-f]{16,}$")
"""Ids of incarnations, journals, sequences and senders, and digests."""
NUMBERS = frozenset({"le", "version", "major", "minor", "patchlevel", "generation", "instance"})
"""Labels whose values are numbers."""


def labels_on(page: str) -> set[tuple[str, str, str]]:
    """The metric, label and value of each label on a page of metrics."""
    with urllib.request.urlopen(f"http://{page}/metrics", timeout=patience(5)) as answer:
        text = answer.read().decode()
    return {
        (family.name, name, value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        for name, value in sample.labels.items()
    }


@pytest.mark.timeout(240)
async def test_no_label_has_an_internal_id(tmp_path: Path) -> None:
    page = f"127.0.0.1:{free_ports(1)[0]}"
    options = ("--metrics-port", page.rpartition(":")[2])
    async with Server(tmp_path / "db", tmp_path / "log", options=options) as server:
        await submit_copy(server.address, program.__file__, "shop", tmp_path)
        with program_page() as own:
            async with Shop(server.address).open() as shop:
                shop.special += ["poison"]
                split = await run_cli(server.address, "interval", "split", "shop/count", "--at", "item 3")
                assert split.code == 0, split.err

                async def found() -> set[tuple[str, str, str]]:
                    return await asyncio.to_thread(labels_on, page) | await asyncio.to_thread(labels_on, own)

                expected = {
                    ("millwheel_authority_watermark_seconds", "computation", "count"),
                    ("millwheel_authority_watermark_seconds", "stream", "shop/orders"),
                    ("millwheel_authority_watermark_seconds", "stream", "shop/dead-letters"),
                    ("millwheel_unacked_records", "injector", "till"),
                    ("millwheel_dead_letters", "computation", "count"),
                    ("millwheel_cursor_lag_records", "cursor", "ledger"),
                    ("millwheel_injector_sent_records", "process", "till"),
                }
                labels = await until(found, patience(20), every=0.5, holds=lambda labels: expected <= labels)
    assert {one for one in labels if one[1] not in NUMBERS and INTERNAL.search(one[2])} == set()
