"""What a reader of a journal finds of its keys is what the owner has committed (4.4, 6.2; G12).

The histories are those of spilled timers: owners crash, timers are set again and cancelled while their copies are in
the store, and bases are written all the time.
"""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from millwheel.model.incarnation import IncarnationId
from millwheel.store.contract import CorruptValueError, PartId
from millwheel.testing import cluster
from millwheel.testing.store_effects import result_of
from millwheel.worker.interval.commits.divided import joined
from millwheel.worker.interval.entry import decode_entry, encode_part
from millwheel.worker.interval.saved_keys import SavedKeys
from tests.worker.interval.test_spilled_timers import KEYS, Log, SlowStore, Timed, check_log


class Saved(Timed):
    """A history whose journals are read whenever all work is done."""

    def rest(self) -> None:
        super().rest()
        for journal, core in self.driver.cores.items():
            saved = self.read(journal)
            of_core = [key.encode() for key in KEYS if key.encode() in core.keys]
            found = {key: saved.states.get(key, self.row(core.state.config.incarnation, key)) for key in of_core}
            logs = {key: msgspec.msgpack.decode(state, type=Log) if state else Log() for key, state in found.items()}
            assert logs == {key: self.log(key.decode()) for key in of_core}
            for key in of_core:
                timers = {name: row[3] for name, row in saved.timers.get(key, {}).items()}
                assert timers == check_log(self.log(key.decode()))[1], f"{journal}, key {key!r}"
            assert saved.holds == core.state.holds.of_keys
            assert saved.all_keys() <= set(of_core)
            self.driver.reached["base"] += not saved.states.keys() >= {key for key in of_core if found[key]}

    def read(self, journal: str) -> SavedKeys:
        store = self.driver.store
        head = result_of(store.read_head(journal))
        blobs = result_of(store.read_parts(journal, list(head.parts)))
        parts = dict(zip(head.parts, blobs, strict=True))
        saved = SavedKeys(parts, journal)
        first = head.truncation_point + 1
        entries = result_of(store.read_entries(journal, first, head.commit)) if first <= head.commit else []
        for commit, blob in enumerate(entries, first):
            saved.apply(decode_entry(joined(blob, commit, parts, journal), journal))
        return saved

    def row(self, incarnation: IncarnationId, key: bytes) -> bytes:
        (row,) = result_of(self.driver.store.read_states(incarnation, [key]))
        return b"" if row is None else row.blob


@pytest.mark.guarantee("G12", section="6.2")
def test_a_reader_finds_what_the_owner_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "CoreDriver", SlowStore)
    reached: Counter[str] = Counter()
    for seed in range(7_000, 7_012):
        reached += Saved(seed).run()
    assert reached.keys() >= {"spilled", "void", "holds", "base"}


def test_a_part_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(CorruptValueError, match=r"j1, base part news/0: a part of a kind that this version"):
        SavedKeys({PartId("news/0", 1, 1): encode_part([])}, "j1")
