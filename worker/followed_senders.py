"""What one owner learns of its senders: watermarks, sequencers, and the lives of injected streams (G7, G13)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millwheel.model.keys import KeyInterval
from millwheel.model.watermarks import InputWatermark
from millwheel.worker.admission import DeliveryAdmission
from millwheel.worker.id_segments import AdmissionState
from millwheel.worker.messages import CatalogChanged, GroupWatermarks

__all__ = ["FollowedSenders"]


class FollowedSenders:
    """The senders of one owner, as the catalog and the authority's broadcasts show them."""

    def __init__(self, inputs: InputWatermark, ids: AdmissionState, admission: DeliveryAdmission) -> None:
        """
        Args:
            inputs: The broadcast watermarks of the owner's groups.
            ids: The ids that the owner knows.
            admission: Admits the owner's deliveries.
        """
        self._inputs = inputs
        self._ids = ids
        self._admission = admission
        self.sequence_checked = admission.lookups.sequence_checked
        """A look-up has shown whether a sender lives."""
        self._lives: Mapping[str, int] = {}
        """The floor of each injector group's life, as the catalog shows it."""
        self._opened = False
        self._early: dict[str, dict[KeyInterval | str, int]] = {}
        """The sequencers of groups that were broadcast before the committed ids were known."""

    def opened(self) -> None:
        """The committed ids are known."""
        self._opened = True
        self._begin_lives({})
        self._forget_ids(self._inputs.latest, {group: known.items() for group, known in self._early.items()})
        self._early.clear()
        self._admission.forget_ended()

    def broadcast(self, event: GroupWatermarks) -> None:
        """The authority has broadcast watermarks."""
        self._inputs.update(event.values)
        if self._opened:
            self._forget_ids(event.values, event.sequencers)
            return
        for group, sequencers in event.sequencers.items():
            known = self._early.setdefault(group, {})
            for member, sequencer in sequencers:
                known[member] = max(sequencer, known.get(member, sequencer))

    def catalog_changed(self, event: CatalogChanged) -> None:
        """The catalog has another slack, other lives, groups, or retired senders."""
        if event.slack is not None:
            self._ids.slack = event.slack
        for group, floor in event.lives.items():
            # The value of a former life may be above that of the present one (G7).
            if floor > self._lives.get(group, floor):
                self._inputs.restart(group)
        before, self._lives = self._lives, {**self._lives, **event.lives}
        if self._opened:
            self._begin_lives(before)
        self._admission.retire(event.retired)
        self._admission.end(event.ended_injectors, event.ended_queries)
        self._inputs.follow(event.groups, event.beside)

    def _begin_lives(self, before: Mapping[str, int]) -> None:
        """Drop the ids of former lives, once the committed ids are known. ``before``: the lives known earlier."""
        if self._ids.exactly_once:
            for group, floor in self._lives.items():
                self._ids.dedup.begin_life(group, floor, first=group not in before)

    def _forget_ids(
        self, values: Mapping[str, int], sequencers: Mapping[str, Iterable[tuple[KeyInterval | str, int]]]
    ) -> None:
        """Drop ids that no sender can send again, according to broadcast watermarks and the sequencers behind them."""
        ids = self._ids
        if not ids.exactly_once:
            return
        for group, members in sequencers.items():
            ids.dedup.learn(group, members)
        for group, watermark in values.items():
            if group in ids.dedup.opaque_groups:
                ids.advance(group, watermark)
