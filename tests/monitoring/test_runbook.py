"""The runbook's sections do not lead a tired reader into undoing or overdoing what another section asks for."""

from __future__ import annotations

import re
from pathlib import Path

RUNBOOK = (Path(__file__).parents[2] / "docs" / "runbook.md").read_text()


def section(alert: str) -> str:
    """Return the text of a section in one line."""
    (text,) = re.findall(rf"^## {alert}\n(.*?)(?=^## |\Z)", RUNBOOK, re.DOTALL | re.MULTILINE)
    return " ".join(text.split())


def test_a_process_that_was_stopped_stays_stopped() -> None:
    """Regression: two minutes after the stop that a section asks for, another one said: start it."""
    down = section("MillwheelProcessDown")
    assert down.index("leave it stopped, and silence") < down.index("start the daemon")
    for alert in ("MillwheelProcessSlow", "MillwheelLinkBroken"):
        assert (
            "Leave it stopped until that is mended. If it could not stop in order, [MillwheelProcessDown]"
            in section(alert)
        )


def test_the_lease_has_its_number_section_and_file() -> None:
    text = section("MillwheelLeaderChanges")
    assert "set `lease_seconds = 15` under `[master]`" in text
    assert "/etc/millwheel/millwheel.toml" in text
    assert "Until then, `cluster health` goes on naming it" in text


def test_a_rollback_comes_before_new_code() -> None:
    text = section("MillwheelHookFailing")
    assert text.index("`millwheel topology rollback") < text.index("`millwheel topology update")
    assert 'shop.add("count", Count, on_failure=mw.dead_letter(), ...)' in text
    assert "#millwheeldeadletters) fires then" in text


def test_the_disk_is_looked_at_before_the_node_is_started() -> None:
    text = section("MillwheelStoreFailing")
    assert text.index("`df -h`") < text.index("free space") < text.index("`systemctl start cassandra`")
    assert "SIGBUS" in text


def test_the_end_of_an_injector_process_comes_with_a_warning() -> None:
    text = section("MillwheelInjectorSilent")
    assert text.index("it is final, and ends the stream") < text.index("`millwheel injector finish")
