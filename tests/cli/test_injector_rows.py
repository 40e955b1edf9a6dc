"""What ``millwheel injector list`` says of one process."""

from __future__ import annotations

from millwheel.cli.injector import last_report
from millwheel.rpc.v1.injection_pb2 import InjectorStatus


def test_a_process_shows_when_it_last_reported() -> None:
    """Regression: a process that hung for two minutes was active, and nothing else."""
    assert last_report(InjectorStatus(silence_us=131_000_000)) == "2 min 11 s ago"
    assert last_report(InjectorStatus()) == "", "nothing is known"
    assert last_report(InjectorStatus(silence_us=131_000_000, finished=True)) == ""
    assert last_report(InjectorStatus(silence_us=131_000_000, retired=True)) == ""
