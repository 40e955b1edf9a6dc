"""For every test: time limits that suit this machine, and failures that are reported, also while other threads run."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Generator

import hypothesis
import pytest

from tests.patience import patience
from tests.servers import stop_servers_with_their_loops

# An example may take any time on a busy machine. The time limit of the whole test stays.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")

# pytest parses the source of what failed. In some releases of CPython (3.11.7 is one) that ends with "AST constructor
# recursion depth mismatch" if another thread parses, too, and the whole run with it. Threads of the Cassandra driver do
# when they log an error: tracebacks parse each line, to underline the part of it that raised. They do without.
setattr(traceback, "_extract_caret_anchors_from_line_segment", lambda _: None)  # noqa: B010  # its name is private

stop_servers_with_their_loops()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what a test that fails holds: "holds G8 (section 7.1)"."""
    report = yield
    held = _held(item)
    if report.failed and held:
        report.sections.append(("what the test is for", held))
    return report


def _held(item: pytest.Item) -> str:
    """The guarantees and sections that a test is marked with; empty if it is not."""
    parts = []
    for marker in (*item.iter_markers("guarantee"), *item.iter_markers("paper")):
        names, section = ", ".join(marker.args), marker.kwargs.get("section", "")
        section = f"section {section}" if section[:1].isdigit() else section
        parts.append(f"{names} ({section})" if names and section else names or section)
    return f"holds {'; '.join(parts)}" if parts else ""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a test that fails at once: a run that is cut short has no summary."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        reason = getattr(getattr(report.longrepr, "reprcrash", None), "message", str(report.longrepr))
        sys.stdout.write(f"\nFAILED {report.nodeid} ({report.when}): {reason.strip().partition(chr(10))[0][:300]}\n")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Multiply the time limit of each test by the one factor that there is (tests/patience.py).

    ``--timeout`` on the command line is taken as it is.
    """
    if config.getoption("timeout") is not None:
        return
    usual = float(config.getini("timeout"))
    for item in items:
        marker = item.get_closest_marker("timeout")
        seconds = float(marker.args[0]) if marker is not None and marker.args else usual
        item.add_marker(pytest.mark.timeout(patience(seconds)), append=False)
