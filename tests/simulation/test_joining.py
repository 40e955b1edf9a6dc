"""A record of an added computation is late only behind a watermark of an owner that did not know it (7.1)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from millwheel.coordination.contract import KeyChange
from millwheel.model.catalog_keys import topology_key
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import KeyInterval
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.worker.interval import IntervalCore
from simulation.blocks import Item
from simulation.blocks.records import Step
from simulation.forms import Form
from simulation.joining import Joinings
from simulation.world import World

JOURNAL = "behind.8.j9"
LOW, HIGH = KeyInterval(b"", b"m"), KeyInterval(b"m", None)


class Run:
    """``behind`` is served with sequencers of a test's choice; an update draws 42 and adds ``middle.43``."""

    def __init__(self) -> None:
        self.newest = 0
        head = SimpleNamespace(head=lambda _: SimpleNamespace(sequencer=self.newest))
        taps = SimpleNamespace(advances=[])
        form = Form("s0", ("s0",), lives=2)
        world = SimpleNamespace(changes=[], taps=taps, store=SimpleNamespace(inner=head), forms={"digest": form})
        self.joinings = Joinings(cast("World", world))
        self._changed, self._advanced = world.changes[0], taps.advances[0]

    def updated(self) -> None:
        """The update takes effect."""
        record = catalog.TopologyRecord(switching={"behind": 42}, incarnations={"behind": IncarnationId("behind.8")})
        record.incarnations["middle"] = IncarnationId("middle.43")
        record.spec.code.digest = "digest"
        self._changed((KeyChange(topology_key("simulated"), record.SerializeToString(), 1),))

    def advanced(self, sequencer: int, watermark: int, *senders: str, keys: KeyInterval = LOW) -> None:
        """An owner advances to a watermark."""
        self.newest = max(self.newest, sequencer)
        core: Any = IntervalCore.__new__(IntervalCore)
        config = SimpleNamespace(incarnation="behind.8", journal=JOURNAL, sequencer=sequencer, keys=keys)
        core.state = SimpleNamespace(config=config, watermark=watermark, inputs=SimpleNamespace(groups=senders))
        self._advanced(core)

    def excuses(self, timestamp: int, key: str = "a", *, by: str = "middle#2/0", late: bool = True) -> bool:
        """Whether a record may be late."""
        steps = [Step(by, key, 1, 0), Step("behind", key, 1, 0, late)]
        return self.joinings.excuses(Item([1], key, key, False, steps), timestamp)


@pytest.fixture
def run() -> Run:
    return Run()


def test_an_edge_counts_from_when_the_owner_knows_it(run: Run) -> None:
    """A record is late only behind watermarks of earlier owners without the edge, before the update and after it."""
    run.advanced(39, 10, "base.3")
    run.updated()
    run.advanced(39, 20, "base.3")
    run.advanced(39, 30, "base.3", "middle.43")
    assert run.excuses(19)
    assert not run.excuses(20)
    assert run.excuses(19, late=False)
    assert not run.excuses(19, by="base")
    assert not run.excuses(19, key="z"), "the owner of these keys passed nothing"
    run.advanced(39, 25, "base.3", keys=HIGH)
    assert not run.excuses(19, key="z"), "it is the same owner"


def test_an_owner_from_after_the_update_knows_it(run: Run) -> None:
    """This holds for any senders of the owner. So a product that forgets one is reported."""
    run.updated()
    run.advanced(60, 20, "base.3")
    assert not run.excuses(19)


def test_an_owner_that_forgets_a_sender_is_reported(run: Run) -> None:
    """The owner had known the sender before."""
    run.updated()
    run.advanced(39, 10, "base.3", "middle.43")
    run.advanced(39, 20, "base.3")
    assert not run.excuses(15)


def test_what_a_deposed_owner_passes_excuses_nothing(run: Run) -> None:
    """No process uses the watermark of a deposed owner."""
    run.updated()
    run.advanced(39, 10, "base.3")
    run.advanced(60, 10, "base.3", "middle.43")
    run.advanced(39, 20, "base.3")
    assert run.excuses(9)
    assert not run.excuses(15)
