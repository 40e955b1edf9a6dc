"""The man page is what the commands say now."""

from __future__ import annotations

from tools.man_page import PAGE, man_page


def test_the_man_page_is_fresh() -> None:
    assert PAGE.read_text() == man_page(), "run make man"


def test_the_man_page_has_every_command_and_no_stray_request() -> None:
    text = PAGE.read_text()
    for part in ("millwheel stream produce", "millwheel key list", "millwheel stream cursors delete", "\\-\\-yes"):
        assert part in text
    requests = {line.split()[0] for line in text.splitlines() if line[:1] in (".", "'")}
    assert requests == {".TH", ".SH", ".SS", ".TP", ".PP", ".B"}
