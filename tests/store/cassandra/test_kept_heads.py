"""A process keeps a bounded number of journal heads: it does not learn which journals it has lost (G13)."""

from __future__ import annotations

from typing import Any, cast

import pytest

from millwheel.store.cassandra import journals
from millwheel.store.cassandra.journals import Journals
from millwheel.store.contract import JournalHead
from tests.kept import kept


@pytest.mark.guarantee("G13")
def test_the_heads_written_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the heads of all journals that were ever owned here stayed, with their part lists."""
    monkeypatch.setattr(journals, "MAX_KEPT_HEADS", 3)
    written = Journals(cast("Any", None), {})
    for number in range(10):
        written.keep("c.1.j1", JournalHead(1, number, 0, ()))
        written.keep(f"c.1.j{number + 2}", JournalHead(1, 1, 0, ()))
        assert len(kept(written, JournalHead)) <= 3
    assert JournalHead(1, 9, 0, ()) in kept(written, JournalHead)
