"""Deliveries and their answers, as the network carries them."""

from __future__ import annotations

from typing import Any

from millwheel.model.deliveries import Delivery, OpaqueIds, PositionIds
from millwheel.rpc.deliveries import answered_tokens, decode_delivery
from millwheel.rpc.v1 import delivery_pb2 as delivery
from millwheel.rpc.v1 import watermark_pb2 as watermark
from simulation.network import Connection
from simulation.scenarios.players import FRUIT, seconds_text
from simulation.scenarios.telling import Telling, person

__all__ = ["Wire"]

_DELIVER = "/millwheel.v1.DeliveryService/Deliver"
_REPORT = "/millwheel.v1.WatermarkService/Report"

_WHY = {
    delivery.DELIVERY_OUTCOME_NOT_OWNER: "it does not own {journal}",
    delivery.DELIVERY_OUTCOME_REFUSED_FULL: "{message}",
    delivery.DELIVERY_OUTCOME_REFUSED_SEQUENCER: "the sender has a successor",
    delivery.DELIVERY_OUTCOME_INVALID: "it is invalid",
}


class Wire:
    """A tap of the network; see :class:`simulation.network.Network`."""

    def __init__(self, telling: Telling) -> None:
        self._telling = telling
        self._methods: dict[tuple[Connection, int], str] = {}
        self._sent: dict[tuple[Connection, int, int], Delivery] = {}
        self._known: set[object] = set()
        """The ids of all records that were ever delivered, by consumer."""

    def __call__(self, connection: Connection, side: int, message: tuple[Any, ...]) -> None:
        """A message is sent."""
        if len(message) < 3:
            return
        number, kind, content = message[:3]
        if kind == "start":
            self._methods[connection, number] = content
        elif kind == "message":
            method = self._methods.get((connection, number))
            if method == _DELIVER:
                self._deliver(connection, number, side, content)
            elif method == _REPORT and side == 1:
                self._refused(connection, content)

    def _deliver(self, connection: Connection, number: int, side: int, content: bytes) -> None:
        client, server = connection.sides
        if side == 0:
            sent = decode_delivery(delivery.DeliverRequest.FromString(content), None)
            self._sent[connection, number, sent.token] = sent
            label = self._telling.label(sent.journal)
            ids = _ids(sent)
            again = " again, under the same id" if ids <= self._known else ""
            self._known |= ids
            text = f"sends {_records(sent, range(len(sent.keys)))} to {label} at {person(server)}{again}"
            self._telling.tell("deliver", label, text, client)
            return
        response = delivery.DeliverResponse.FromString(content)
        for token in answered_tokens(response):
            self._answer(connection, self._sent[connection, number, token], response)

    def _answer(self, connection: Connection, sent: Delivery, response: delivery.DeliverResponse) -> None:
        client, server = connection.sides
        label = self._telling.label(sent.journal)
        if response.outcome == delivery.DELIVERY_OUTCOME_ACKED:
            done = [index for index in range(len(sent.keys)) if index not in set(response.indexes)]
            if done:
                text = f"ACKs {_records(sent, done)} of {label} to {person(client)}"
                self._telling.tell("ack", label, text, server)
            return
        refused = response.indexes or range(len(sent.keys))
        why = _WHY[response.outcome].format(journal=label, message=response.message)
        text = f"does not take {_records(sent, refused)} for {label} from {person(client)}: {why}"
        self._telling.tell("untaken", label, text, server)

    def _refused(self, connection: Connection, content: bytes) -> None:
        client, server = connection.sides
        for one in watermark.ReportResponse.FromString(content).refused:
            name = self._telling.name(one.group)
            number = self._telling.number(one.sequencer)
            at = seconds_text(one.watermark_us)
            text = f"refuses {person(client)}'s report of t={at} for {name}: {number} is an old one"
            self._telling.tell("unheard", name, text, server)


def _records(sent: Delivery, indexes: Any) -> str:
    return ", ".join(str(FRUIT.decode(sent.values[index])) for index in indexes)


def _ids(sent: Delivery) -> set[object]:
    ids = sent.ids
    if isinstance(ids, PositionIds):
        return {(sent.consumer, ids.sequence, position) for position in ids.positions}
    of = "" if isinstance(ids, OpaqueIds) else f"{ids.query}/{ids.batch}"
    return {(sent.consumer, of, one) for one in ids.ids}
