"""How a run with several processes (``pytest -n``) shares its tests out: by file, and what takes long begins first.

Otherwise one process would come to a long file last, and the others would wait for it. The tests of one component are
one share, so that one process starts it, and not each.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import pytest
from xdist.scheduler import LoadFileScheduling

TOGETHER: Final = {
    "Cassandra": (
        "tests/connectors/cassandra/",
        "tests/contracts/",
        "tests/daemons/test_components.py",
        "tests/daemons/test_kills.py",
        "tests/deploy/test_chart_processes.py",
        "tests/deploy/test_units.py",
        "tests/snapshots/test_real_components.py",
        "tests/store/cassandra/",
    ),
    "Kafka": ("tests/connectors/kafka/",),
    "Spark": ("tests/spark/",),
}
"""Files and folders whose tests share a component of tests/components.py, or a session of Spark, that starts slowly."""

FIRST: Final = (
    "Cassandra",
    "tests/simulation/test_seeds.py",
    "Kafka",
    "tests/snapshots/test_lost_disks.py",
    "Spark",
    "tests/documents/test_pages.py",
    "tests/system/test_failing_keys.py",
    "tests/simulation/test_checkers.py",
    "tests/snapshots/test_forks.py",
    "tests/coordination/test_renewals.py",
    "tests/system/test_dead_letters.py",
    "tests/examples/zeitgeist/test_anomalies.py",
    "tests/cli/test_looking.py",
    "tests/cli/test_topology.py",
    "tests/system/test_kafka.py",
    "tests/system/test_failing_hooks.py",
)
"""Shares of more than half a minute: the longest first, by turns those that compute and those that wait.

``--durations=0`` shows what a test takes.
"""


def share_of(test: str) -> str:
    """The name of the share that a test, or a file, belongs to."""
    file = test.partition("::")[0]
    return next((name for name, places in TOGETHER.items() if file.startswith(places)), file)


def put_in_order(items: list[pytest.Item]) -> None:
    """Put the tests of each share together: those of FIRST, and then shares of many tests before those of few."""
    sizes = Counter(share_of(item.nodeid) for item in items)
    turns = {share: turn for turn, share in enumerate(FIRST)}
    items.sort(key=lambda item: (turns.get(share := share_of(item.nodeid), len(FIRST)), -sizes[share]))


class Sharing(LoadFileScheduling):  # type: ignore[misc]  # it has no types
    """Gives a process one share after the other, in the order of the tests."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return share_of(nodeid)
