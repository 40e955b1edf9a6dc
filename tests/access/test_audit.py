"""What a line of the audit log shows of a message."""

from __future__ import annotations

from millwheel.rpc.access.audit import summary
from millwheel.rpc.v1.delivery_pb2 import DeliverRequest
from millwheel.rpc.v1.letter_pb2 import DiscardLettersRequest, ReplayLettersResponse


def test_a_line_has_the_ids_of_dead_letters() -> None:
    shown = summary(DiscardLettersRequest(topology="shop", ids=[9, 3, 4, 5, 4], log=7))
    assert shown == {"topology": "shop", "ids": "3-5, 9", "log": 7}
    shown = summary(ReplayLettersResponse(replayed=[0], unconfirmed=[1, 2], why_unconfirmed="no owner"))
    assert shown == {"replayed": "0", "unconfirmed": "1-2", "why_unconfirmed": "no owner"}


def test_a_line_does_not_grow_with_the_letters() -> None:
    shown = summary(DiscardLettersRequest(ids=range(0, 200_000, 2)))["ids"]
    assert isinstance(shown, str)
    assert shown.startswith("0, 2, 4, ")
    assert shown.endswith(", 1996, 1998 and 99,000 more")


def test_other_lists_are_left_out() -> None:
    assert summary(DeliverRequest(timestamps_us=[1], keys=[b"k"])) == {}
