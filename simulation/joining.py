"""Checks the time from which an added computation counts at its consumer (sections 4.5, 7.1; G7).

An update adds an edge. At each interval of the consumer, the edge counts once the interval's owner knows the update.
Until then the owner follows only the other senders, so its watermark may pass later records of the added computation.
They are late. No owner waits for a sender that it does not know. An owner that is cut off from the coordinator may
continue for some seconds.

Invariant: a record of ``middle`` is late at ``behind``, or what ``behind`` makes of it at its consumers, only if an
owner of its key had passed its timestamp before it knew of ``middle``. Who could break it: an owner that knows the
update and does not wait, or that forgets a sender. An owner whose sequencer was drawn after the update knows it,
whatever senders it has. An earlier one knows it when it has the sender for the first time.
"""

from __future__ import annotations

from collections.abc import Iterable

from millwheel.coordination.contract import KeyChange
from millwheel.model.catalog_keys import topology_key
from millwheel.model.incarnation import incarnation_of_journal
from millwheel.model.keys import KeyInterval
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.worker.interval import IntervalCore
from millwheel.worker.log import LogCore
from simulation.blocks import Item
from simulation.forms import BEHIND, MIDDLE, life_of
from simulation.world import World

__all__ = ["Joinings"]


class Joinings:
    """Follows how far the owners of ``behind`` come before they know of each incarnation of ``middle``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._joined: dict[str, tuple[str, str, int]] = {}
        """By the name that its steps have: an incarnation, its consumer's, and the number drawn for its update."""
        self._known: dict[tuple[str, int], frozenset[str]] = {}
        """By journal and sequencer: all senders that the owner has had."""
        self._passed: dict[tuple[str, int, KeyInterval, frozenset[str]], int] = {}
        """By journal, sequencer, keys and the senders known by then: the largest watermark."""
        self.excused = False
        """Whether a late record was excused."""
        world.changes.append(self._changed)
        world.taps.advances.append(self._advanced)

    def _changed(self, changes: Iterable[KeyChange]) -> None:
        for change in changes:
            if change.key != topology_key("simulated") or change.value is None:
                continue
            record = catalog.TopologyRecord.FromString(change.value)
            form = self._world.forms.get(record.spec.code.digest)
            if form is None or MIDDLE not in record.incarnations:
                continue
            life, incarnation = f"{MIDDLE}#{form.lives}", record.incarnations[MIDDLE]
            if life not in self._joined or self._joined[life][0] != incarnation:
                drawn = max(record.switching.values(), default=0)
                self._joined[life] = incarnation, record.incarnations[BEHIND], drawn

    def _advanced(self, core: IntervalCore | LogCore) -> None:
        if not isinstance(core, IntervalCore) or core.state.config.incarnation.rpartition(".")[0] != BEHIND:
            return
        config = core.state.config
        head = self._world.store.inner.head(config.journal)
        if head is None or head.sequencer != config.sequencer:
            return  # a deposed owner shows its watermark to no one
        owner = config.journal, config.sequencer
        known = self._known.get(owner, frozenset()).union(core.state.inputs.groups)
        self._known[owner] = known
        place = *owner, config.keys, known
        self._passed[place] = max(core.state.watermark, self._passed.get(place, core.state.watermark))

    def excuses(self, item: Item, timestamp: int) -> bool:
        """Whether ``behind`` took the item from a computation that had joined behind its timestamp.

        Whether the item was late at ``behind`` itself does not matter.
        """
        if len(item.steps) < 2 or item.steps[-1].computation != BEHIND:
            return False
        joined = self._joined.get(life_of(item.steps[-2].computation))
        excused = joined is not None and timestamp < self._bound(*joined, item.steps[-1].key.encode())
        self.excused |= excused
        return excused

    def _bound(self, incarnation: str, consumer: str, drawn: int, key: bytes) -> int:
        """The watermark that the consumer's owners of a key had reached before they knew of an incarnation."""
        passed = (
            watermark
            for (journal, sequencer, keys, known), watermark in self._passed.items()
            if incarnation_of_journal(journal) == consumer
            and sequencer < drawn
            and incarnation not in known
            and key in keys
        )
        return max(passed, default=int(MIN_TIMESTAMP))
