"""What a log that runs learns of its stream's retention (section 4.3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millwheel.coordination.contract import KeyChange
from millwheel.model.catalog_keys import log_key
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.worker.log import LogConfig, LogCore, LogRetention, RetentionChanged
from millwheel.worker.process.building import Built
from tests.worker.test_worker import hosted, worker


async def test_a_log_is_notified_of_its_streams_retention(tmp_path: Path) -> None:
    """Once, and not of what it was opened with. Its interval map stays as it is, so nothing else opens it again."""
    one = worker(tmp_path)
    core = LogCore(LogConfig("t/out", IncarnationId("t/out.log.1"), "t/out.log.1.j1", 1, frozenset()))
    posted: list[Any] = []
    hosted(one, "t/out.log.1.j1", 1)
    built = one.hosts.hosted["t/out.log.1.j1"]
    built.built = Built(core, (), log_of="t/out")
    built.host.post = lambda event: posted.append(event)  # type: ignore[method-assign]
    record = catalog.StreamLogRecord(stream="t/out", incarnation=IncarnationId("t/out.log.1"))
    for revision, age in enumerate((0, 0, 7), 1):
        record.retention.max_age_us = age
        one.catalog.apply([KeyChange(log_key("t/out"), record.SerializeToString(), revision)])
        one.notices.notify()
    assert [event for event in posted if isinstance(event, RetentionChanged)] == [
        RetentionChanged(LogRetention(max_age=7, stated=True))
    ]
    await one.ownership.drop_all()
