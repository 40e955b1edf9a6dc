"""Mutations of gateways and webhooks: keys, ids that are forgotten, promises and refusals (sections 5.2, 6.1.1)."""

from __future__ import annotations

from millwheel.client.injector.injector import Injector
from millwheel.connectors import webhooks
from millwheel.injectors.http import bodies, gateway
from simulation.mutations.base import rewriting

__all__: list[str] = []

_WHY = "simulated topologies have no requests: the test shows it by itself, in seconds"

rewriting(
    "ids-of-one-gateway",
    "G1",
    "a request has the same ids at each gateway",
    bodies,
    '"key:{len(read.values)}:{key}"',
    '"key:{len(read.values)}:{key}:{id(read)}"',
    seeds=0,
    test="tests/injectors/test_http.py::test_a_request_to_two_gateways_counts_once",
    why=_WHY,
)

rewriting(
    "forgotten-ids-are-sent",
    "G1",
    "a record whose id may be forgotten is refused",
    Injector,
    "and again and min(timestamps) < kept_from",
    "and False",
    seeds=0,
    test="tests/injectors/test_http.py::test_a_repetition_that_comes_too_late_is_refused",
    why=_WHY,
)

rewriting(
    "answers-wait-for-each-other",
    "G8",
    "a failing record delays the answer to its own request alone",
    Injector,
    "if sent.ids.isdisjoint(self._unacked_ids().get(sent.scope, ())):",
    "if False:",
    seeds=0,
    test="tests/injectors/test_http.py::test_what_is_full_says_when_to_come_again",
    why=_WHY,
)

rewriting(
    "promises-pass-what-waits",
    "G7",
    "a gateway promises nothing above a record that waits for room",
    gateway.HttpGateway,
    "*self._held.values()",
    "*()",
    seeds=0,
    test="tests/injectors/test_http.py::test_a_record_that_waits_for_room_is_not_late",
    why=_WHY,
)

rewriting(
    "webhook-keys-drawn",
    "G1",
    "a batch has one key, however often it is posted",
    webhooks,
    '"Idempotency-Key": batch.id',
    '"Idempotency-Key": str(time.monotonic())',
    seeds=0,
    test="tests/connectors/test_webhook.py::test_each_batch_has_one_key_however_it_is_answered",
    why=_WHY,
)

rewriting(
    "webhook-skips-refusals",
    "G1",
    "a batch that the receiver refuses is not skipped",
    webhooks,
    "200 <= response.status < 300",
    "200 <= response.status < 500",
    seeds=0,
    test="tests/connectors/test_webhook.py::test_a_refused_batch_is_not_skipped",
    why=_WHY,
)
