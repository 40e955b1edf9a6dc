"""What an owner learns from the catalog of its senders: their groups, and the lives of injected streams (G7, G13)."""

from __future__ import annotations

from collections.abc import Mapping

from millwheel.model.watermarks import InputWatermark
from millwheel.worker.admission import DeliveryAdmission
from millwheel.worker.id_segments import AdmissionState
from millwheel.worker.messages import CatalogChanged

__all__ = ["SenderLives"]


class SenderLives:
    """The senders that the catalog shows to one owner."""

    def __init__(self, inputs: InputWatermark, ids: AdmissionState, admission: DeliveryAdmission) -> None:
        self._inputs = inputs
        self._ids = ids
        self._admission = admission
        self._lives: Mapping[str, int] = {}
        """The floor of each injector group's life, as the catalog shows it."""
        self._opened = False

    def opened(self) -> None:
        """The committed ids are known."""
        self._opened = True
        self._begin_lives({})

    def catalog_changed(self, event: CatalogChanged) -> None:
        """The catalog has another slack, other lives, groups, or retired senders."""
        if event.slack is not None:
            self._ids.slack = event.slack
        for group, floor in event.lives.items():
            # The value of a former life may be above that of the present one (G7).
            if floor > self._lives.get(group, floor):
                self._inputs.restart(group)
                self._ids.watermarks.pop(group, None)
        before, self._lives = self._lives, {**self._lives, **event.lives}
        if self._opened:
            self._begin_lives(before)
        self._admission.retire(event.retired)
        self._admission.end(event.ended_injectors, event.ended_queries)
        inputs = self._inputs
        known = inputs.groups.keys()
        for group in event.groups.difference(known):
            inputs.add(group)
        for group in known - event.groups:
            inputs.remove(group)
        watermarks = self._ids.watermarks
        for group in watermarks.keys() - event.groups - event.beside:
            del watermarks[group]

    def _begin_lives(self, before: Mapping[str, int]) -> None:
        """Drop the ids of former lives, once the committed ids are known. ``before``: the lives known earlier."""
        if self._ids.exactly_once:
            for group, floor in self._lives.items():
                self._ids.dedup.begin_life(group, floor, first=group not in before)
