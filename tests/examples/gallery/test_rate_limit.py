"""A client gets ten requests at once, and one each second."""

from __future__ import annotations

from random import Random

import pytest

from examples.gallery.rate_limit import BURST, Request, rate_limit
from tests.examples.gallery.playing import at, play

CLIENTS = ("ann", "eve", "tom")


def allowed(moments: list[int]) -> list[bool]:
    """A bucket of ten tokens, in thousandths: one more each second. ``moments`` are in milliseconds."""
    tokens, before, found = 1_000 * BURST, 0, []
    for moment in moments:
        tokens, before = min(1_000 * BURST, tokens + moment - before), moment
        found.append(tokens >= 1_000)
        tokens -= 1_000 * found[-1]
    return found


@pytest.mark.parametrize("chunk", [1, 30])
def test_each_client_has_a_bucket_of_its_own(chunk: int) -> None:
    chance = Random(10)
    moments = {client: sorted(chance.sample(range(50_000), 100)) for client in CLIENTS}
    requests = {client: [Request(client, f"/{number}") for number in range(100)] for client in CLIENTS}
    records = [
        ("requests", request, at(moment / 1_000))
        for client in CLIENTS
        for request, moment in zip(requests[client], moments[client], strict=True)
    ]
    harness = play(rate_limit, records, chunk=chunk)
    passed, refused = harness.values("allowed"), harness.values("refused")
    for client in CLIENTS:
        answers = allowed(moments[client])
        expected = [request for request, answer in zip(requests[client], answers, strict=True) if answer]
        assert [one for one in passed if one.client == client] == expected
        assert 20 < len(expected) < 80
        assert harness.state("limit", client) is None
    assert len(passed) + len(refused) == 300
