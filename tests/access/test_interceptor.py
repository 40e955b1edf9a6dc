"""The interceptor in a real server with TLS: each method of the protos is open to the roles that it states alone.

The services here implement nothing. So a call that is let through ends with UNIMPLEMENTED.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.message_factory import GetMessageClass

from millwheel.config.access_policy import PolicyFile
from millwheel.rpc.access.authorization import Authorization
from millwheel.rpc.access.credentials import of_certificate
from millwheel.rpc.access.delegation import delegated
from millwheel.rpc.access.policy import ROLES, held
from millwheel.rpc.access.requirements import access_of
from millwheel.rpc.errors import from_rpc_error
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.identity import TlsFiles
from millwheel.rpc.principal import Principal, current_principal
from millwheel.rpc.server import bind, create_server
from millwheel.rpc.v1 import (
    control_pb2,
    delivery_pb2,
    injection_pb2,
    interval_pb2,
    snapshot_pb2,
    subscription_pb2,
    watermark_pb2,
)
from millwheel.rpc.v1.delivery_pb2_grpc import DeliveryServiceServicer, DeliveryServiceStub
from millwheel.rpc.v1.subscription_pb2_grpc import SubscriptionServiceServicer
from millwheel.rpc.v1.watermark_pb2_grpc import WatermarkServiceServicer
from tests.access.identities import Identities, channel_as, grant
from tests.access.test_methods import METHODS
from tests.patience import patience, until

LET = FailureCode.UNIMPLEMENTED


class Reading(DeliveryServiceServicer, WatermarkServiceServicer, SubscriptionServiceServicer):
    """Reads the messages of streams, and says of each that it has come."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.principals: list[str] = []

    async def Deliver(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:
        async for request in request_iterator:
            self._note(request)
            yield delivery_pb2.DeliverResponse(token=request.token)

    async def Report(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:
        async for request in request_iterator:
            self._note(request)
            yield watermark_pb2.ReportResponse()

    async def Subscribe(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:
        async for request in request_iterator:
            self._note(request)
            yield subscription_pb2.SubscribeResponse()

    def _note(self, request: Any) -> None:
        self.seen.append(request)
        self.principals.append(current_principal().name)


class Guarded:
    """A server with the interceptor and services that implement nothing."""

    def __init__(self, identities: Identities, address: str, authorization: Authorization, source: PolicyFile) -> None:
        self.identities = identities
        self.address = address
        self.authorization = authorization
        self.source = source
        self.reading = Reading()  # type: ignore[abstract]  # other calls are not made

    async def failure(self, files: TlsFiles, path: str, *given: Any, **more: Any) -> RequestError:
        """The error of a call. gRPC loses the reason of a call that ends while it is written to: then again."""
        while True:
            error = await self._once(files, path, *given, **more)
            if "ended the call while it was written to" not in error.message:
                return error

    async def _once(
        self, files: TlsFiles, path: str, request: Any = None, token: str = "", metadata: Any = ()
    ) -> RequestError:
        """The error of one attempt."""
        method = METHODS[path]
        kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
        message = request or GetMessageClass(method.input_type)()
        async with channel_as(self.address, files, token) as channel:
            open_call = getattr(channel, kind)(path, lambda one: one.SerializeToString(), lambda data: data)
            given = iter([message]) if method.client_streaming else message
            call = open_call(given, timeout=patience(10), metadata=metadata)
            try:
                if method.server_streaming:
                    async for _ in call:
                        pass
                else:
                    await call
            except grpc.aio.AioRpcError as error:
                return from_rpc_error(error, self.address)
        return RequestError(LET, "it was let through, and ended well")

    def certificate(self, name: str, *roles: str, **more: Any) -> TlsFiles:
        return self.identities.certificate(name, roles, **more)


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    identities = Identities(tmp_path)
    source = PolicyFile(identities.policy())
    authorization = Authorization(source)
    server = create_server([authorization])
    address = bind(server, tls=identities.server)
    made = Guarded(identities, address, authorization, source)
    for path in sorted({path.split("/")[1] for path in METHODS}):
        _add(server, path, made.reading)
    await server.start()
    yield made
    await server.stop(0)


def _add(server: grpc.aio.Server, service: str, reading: Reading) -> None:
    name = service.rpartition(".")[2]
    file = next(METHODS[path].containing_service.file.name for path in METHODS if path.split("/")[1] == service)
    stubs = import_module(f"millwheel.rpc.v1.{Path(file).stem}_pb2_grpc")
    servicer = getattr(stubs, f"{name}Servicer")
    getattr(stubs, f"add_{name}Servicer_to_server")(reading if isinstance(reading, servicer) else servicer(), server)


def _allowed(path: str, role: str) -> bool:
    access = access_of(path)
    assert access is not None
    example = access.ways[:1]  # the examples are of the first way
    return any(all(not held([role]).isdisjoint(rule.roles) for rule in way) for way in example)


@pytest.mark.parametrize("role", [*ROLES, ""])
async def test_each_method_is_open_to_its_roles_alone(guarded: Guarded, role: str) -> None:
    files = guarded.certificate("someone", *([role] if role else []))
    wrong = {}
    for path in METHODS:
        error = await guarded.failure(files, path, EXAMPLES.get(path))
        let = error.code is LET
        if let != (bool(role) and _allowed(path, role)):
            wrong[path] = str(error)
        if not let:
            assert (error.code, error.reason) == (FailureCode.PERMISSION_DENIED, "ROLE_MISSING"), (path, error)
            assert error.remedy
    assert not wrong


MOVE = "/millwheel.v1.IntervalService/MoveInterval"
SUBMIT = "/millwheel.v1.TopologyService/SubmitTopology"
DELIVER = "/millwheel.v1.DeliveryService/Deliver"
OPEN = "/millwheel.v1.InjectionService/OpenInjector"
REPORT = "/millwheel.v1.WatermarkService/Report"
ACCEPT = "/millwheel.v1.WatermarkService/AcceptSequencer"
COMMIT = "/millwheel.v1.InjectionService/CommitBatch"
LIST = "/millwheel.v1.TopologyService/ListTopologies"
QUOTA = "/millwheel.v1.TopologyService/SetTopologyQuota"
SNAPSHOT = "/millwheel.v1.SnapshotService/CreateSnapshot"
ROUTING = "/millwheel.v1.RoutingService/WatchRouting"


def move(topology: str, journal: str = "") -> interval_pb2.MoveIntervalRequest:
    name = interval_pb2.IntervalName(topology=topology)
    if journal:
        name.journal = journal
    return interval_pb2.MoveIntervalRequest(interval=name)


def submit(name: str, reads: str) -> control_pb2.SubmitTopologyRequest:
    request = control_pb2.SubmitTopologyRequest()
    request.spec.name = name
    request.spec.computations.add(name="c").inputs.add(stream=reads)
    return request


def declares(name: str, stream: str) -> control_pb2.SubmitTopologyRequest:
    """A topology that declares a stream and reads none."""
    request = control_pb2.SubmitTopologyRequest()
    request.spec.name = name
    request.spec.streams.add(name=stream, external=True)
    return request


def deliver(stream: str, **more: Any) -> delivery_pb2.DeliverRequest:
    sender = delivery_pb2.Sender(name=f"injector/{stream}/p", group=f"injector/{stream}")
    return delivery_pb2.DeliverRequest(stream=stream, sender=more.pop("sender", sender), **more)


def replay(topology: str) -> delivery_pb2.Sender:
    name = f"replay/{topology}/dead-letters.log.3"
    return delivery_pb2.Sender(name=name, group=name)


def accept(group: str) -> watermark_pb2.AcceptSequencerRequest:
    return watermark_pb2.AcceptSequencerRequest(group=group)


def report(*groups: str) -> watermark_pb2.ReportRequest:
    return watermark_pb2.ReportRequest(intervals=[watermark_pb2.IntervalWatermark(group=one) for one in groups])


def columns(group: str, *beside: str) -> watermark_pb2.ReportRequest:
    return watermark_pb2.ReportRequest(
        intervals=[watermark_pb2.IntervalWatermark(group=one) for one in beside],
        columns=[watermark_pb2.IntervalColumns(group=group)],
    )


EXAMPLES = {
    DELIVER: deliver("web/clicks"),
    REPORT: report("injector/web/clicks"),
    ACCEPT: accept("injector/web/clicks"),
}
"""Requests that an injector may make. An empty one has no sender, which is for processes alone."""
WORKER = delivery_pb2.Sender(name="count.1.j2", group="count.1")
FOREIGN = delivery_pb2.PositionIds(sequence="shop/orders/other/p:0")

CASES: list[tuple[str, Any, bool]] = [
    (MOVE, move("web"), True),
    (MOVE, move("shop"), False),
    (MOVE, move(""), False),
    (MOVE, move("web", "count.7.j1"), False),
    (MOVE, move("web", "visits.9.j1"), True),
    (MOVE, move("web", "unknown.5.j1"), False),
    (SUBMIT, submit("web", "web/clicks"), True),
    (SUBMIT, submit("web", "shop/orders"), False),
    (SUBMIT, submit("shop", "web/clicks"), False),
    (SUBMIT, declares("web", "web/clicks"), True),
    (SUBMIT, declares("web", "shop/orders"), False),
    (OPEN, injection_pb2.OpenInjectorRequest(stream="web/clicks"), True),
    (OPEN, injection_pb2.OpenInjectorRequest(stream="shop/orders"), False),
    (OPEN, injection_pb2.OpenInjectorRequest(stream="clicks"), False),
    (DELIVER, deliver("web/clicks"), True),
    (DELIVER, deliver("shop/orders"), False),
    (DELIVER, deliver("web/clicks", sender=WORKER), False),
    (DELIVER, deliver("web/clicks", sender=None), False),
    (DELIVER, deliver("web/clicks", sender=delivery_pb2.Sender(name="injector/web/clicks/p")), False),
    (DELIVER, deliver("web/clicks", sender=delivery_pb2.Sender(group="injector/web/clicks")), False),
    (DELIVER, deliver("web/clicks", sender=None, consumer="visits.9"), False),
    (DELIVER, deliver("web/clicks", positions=FOREIGN), False),
    (DELIVER, deliver("web/clicks", batch=delivery_pb2.BatchIds(query="q/shop/orders")), False),
    (DELIVER, deliver("web/clicks", batch=delivery_pb2.BatchIds(query="q/web/clicks")), True),
    (DELIVER, deliver("shop/orders", sender=replay("web"), consumer="visits.9"), True),
    (DELIVER, deliver("shop/orders", sender=replay("web"), consumer="count.7"), False),
    (DELIVER, deliver("web/clicks", sender=replay("shop"), consumer="visits.9"), False),
    (DELIVER, deliver("shop/orders", sender=replay("web"), consumer="visits.9", journal="count.7.j1"), False),
    (DELIVER, deliver("shop/orders", sender=replay("web"), consumer="visits.9", journal="visits.9.j1"), True),
    (DELIVER, deliver("shop/orders", sender=replay("web"), consumer="visits.9", newer_journal="count.7.j1"), False),
    (DELIVER, deliver("shop/orders", sender=replay("web"), consumer="visits.9", newer_journal="visits.9.j1"), True),
    (REPORT, report("injector/web/clicks"), True),
    (REPORT, report("injector/web/clicks", "injector/shop/orders"), False),
    (REPORT, report("injector/web/clicks", ""), False),
    (REPORT, report("visits.9"), False),
    (REPORT, columns("injector/shop/orders"), False),
    (REPORT, columns("visits.9"), False),
    (REPORT, columns("visits.9", "injector/web/clicks"), False),
    (REPORT, watermark_pb2.ReportRequest(), False),
    (COMMIT, injection_pb2.CommitBatchRequest(query="q/web/clicks"), True),
    (COMMIT, injection_pb2.CommitBatchRequest(query="q/shop/orders"), False),
    (COMMIT, injection_pb2.CommitBatchRequest(query="q"), False),
]


@pytest.mark.parametrize(("path", "request_", "let"), CASES)
async def test_roles_of_a_topology_count_there_alone(guarded: Guarded, path: str, request_: Any, let: bool) -> None:
    """Each message names what belongs to one topology, or to another."""

    async def topology_of(incarnation: str) -> str | None:
        return {"visits.9": "web", "count.7": "shop"}.get(incarnation)

    guarded.authorization.topology_of = topology_of
    _policy(guarded, grant("certificate:eve", ("admin",), ["web", "web-*"]))
    error = await guarded.failure(guarded.certificate("eve"), path, request_)
    assert error.code is (LET if let else FailureCode.PERMISSION_DENIED), error
    assert len(guarded.reading.seen) == (let and METHODS[path].client_streaming), "no refused message is seen"


def _policy(guarded: Guarded, more: str) -> None:
    path = guarded.identities.policy(more)
    os.utime(path)
    guarded.source.reload()


# Credentials.


async def test_a_token_is_its_subject_with_its_groups(guarded: Guarded) -> None:
    """The certificate of the connection has the role process. The token counts instead of it."""
    _policy(guarded, grant("group:ops", ("operate",)))
    files = guarded.identities.server
    ops = guarded.identities.token("ada", groups=["ops"])
    assert (await guarded.failure(files, MOVE, move("web"), ops)).code is LET
    bob = guarded.identities.token("bob", groups=["dev"])
    error = await guarded.failure(files, MOVE, move("web"), bob)
    assert (error.code, error.reason) == (FailureCode.PERMISSION_DENIED, "ROLE_MISSING")
    assert "token:bob may not call MoveInterval: it needs role operate" in str(error)


def _none(identities: Identities) -> str:
    claims = jwt.decode(identities.token("ada"), options={"verify_signature": False})
    return jwt.encode(claims, "", algorithm="none")


def _shared(identities: Identities) -> str:
    """Signed with the public key as a shared secret: the confusion of RS256 and HS256."""
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT","kid":"one"}').rstrip(b"=").decode()
    body = identities.token("ada").split(".")[1]
    secret = identities.jwks.read_bytes()
    sign = base64.urlsafe_b64encode(hmac.digest(secret, f"{head}.{body}".encode(), "sha256")).rstrip(b"=").decode()
    return f"{head}.{body}.{sign}"


def _forged(identities: Identities) -> str:
    claims = jwt.decode(identities.token("ada"), options={"verify_signature": False})
    return jwt.encode(claims, Ed25519PrivateKey.generate(), algorithm="EdDSA", headers={"kid": "one"})


def _nested() -> str:
    """Its header is deeper than Python's JSON goes."""
    return base64.urlsafe_b64encode(b"[" * 4_000).rstrip(b"=").decode() + ".e30.x"


WRONG: dict[str, tuple[Callable[[Identities], str], str]] = {
    "alg-none": (_none, "its algorithm is not among EdDSA"),
    "shared-secret": (_shared, "its algorithm is not among EdDSA"),
    "forged": (_forged, "its signature is wrong"),
    "other-audience": (lambda one: one.token(aud="billing"), "its audience is not 'millwheel'"),
    "no-audience": (lambda one: one.token(aud=None), "it has no claim 'aud'"),
    "other-issuer": (lambda one: one.token(iss="https://evil.example"), "its issuer is not 'https://login.example'"),
    "expired": (lambda one: one.token(exp=time.time() - 3_600), "it has expired"),
    "no-end": (lambda one: one.token(exp=None), "it has no claim 'exp'"),
    "not-yet": (lambda one: one.token(nbf=time.time() + 3_600), "PyJWT refuses it (ImmatureSignatureError)"),
    "no-subject": (lambda one: one.token(sub=None), "it has no claim 'sub'"),
    "unknown-key": (lambda one: one.token(kid="two"), "its issuer has no such key"),
    "nested": (lambda one: _nested(), "it is no JSON Web Token"),
    "garbage": (lambda one: "not-a-token", "it is no JSON Web Token"),
    "long-subject": (lambda one: one.token(sub="x" * 257), "the subject or a group has more than 256 characters"),
    "long-group": (lambda one: one.token(groups=["x" * 257]), "the subject or a group has more than 256 characters"),
    "huge": (lambda one: "x" * 7_000, "it has more than 6,000 characters"),
}


@pytest.mark.parametrize("name", WRONG)
async def test_a_wrong_token_is_refused(guarded: Guarded, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The certificate alone would be let through. A wrong token is not ignored, and no message or log shows it."""
    make, why = WRONG[name]
    token = make(guarded.identities)
    with caplog.at_level(logging.DEBUG):
        error = await guarded.failure(guarded.certificate("ada", "admin"), MOVE, move("web"), token)
    assert error.code is FailureCode.UNAUTHENTICATED
    assert why in str(error)
    assert token not in str(error)
    assert token not in caplog.text


async def test_a_server_without_issuer_takes_no_tokens(guarded: Guarded) -> None:
    guarded.identities.without_tokens()
    guarded.source.reload()
    error = await guarded.failure(guarded.identities.server, LIST, token=guarded.identities.token())
    assert (error.code, error.reason) == (FailureCode.UNAUTHENTICATED, "TOKENS_NOT_ACCEPTED")


async def test_keys_that_the_issuer_changes_are_read_again(guarded: Guarded) -> None:
    _policy(guarded, grant("token:ada", ("operate",)))
    before = guarded.identities.token()
    assert (await guarded.failure(guarded.identities.server, MOVE, move("web"), before)).code is LET
    guarded.identities.publish_keys("two")
    after = guarded.identities.token(kid="two")
    assert (await guarded.failure(guarded.identities.server, MOVE, move("web"), after)).code is LET
    error = await guarded.failure(guarded.identities.server, MOVE, move("web"), before)
    assert error.code is FailureCode.UNAUTHENTICATED


async def test_who_is_revoked_is_refused_at_the_next_call(guarded: Guarded) -> None:
    eve = guarded.certificate("eve", "admin")
    token = guarded.identities.token("mallory")
    _policy(guarded, grant("token:*", ("operate",)))
    assert (await guarded.failure(eve, MOVE, move("web"))).code is LET
    assert (await guarded.failure(guarded.identities.server, MOVE, move("web"), token)).code is LET
    serial = of_certificate(eve.cert.read_bytes()).credential
    gone = f'[revoked]\nserials = ["0x{serial.upper()}"]\ntoken_ids = ["id-mallory"]\n'
    _policy(guarded, grant("token:*", ("operate",)) + gone)
    for files, sent in ((eve, ""), (guarded.identities.server, token), (eve, guarded.identities.token("ada"))):
        error = await guarded.failure(files, MOVE, move("web"), sent)
        assert (error.code, error.reason) == (FailureCode.UNAUTHENTICATED, "CREDENTIAL_REVOKED")
    again = guarded.certificate("eve", "admin")
    assert (await guarded.failure(again, MOVE, move("web"))).code is LET, "a new certificate is another one"


def _audited(caplog: pytest.LogCaptureFixture) -> list[Any]:
    lines = [one for one in caplog.records if one.name == "millwheel.audit"]
    return [getattr(one, "fields") for one in lines]  # noqa: B009  # logging adds it


async def test_a_flood_of_refusals_writes_a_line_of_each_kind(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    eve = guarded.certificate("eve", "inject")
    with caplog.at_level(logging.INFO, "millwheel.audit"):
        for _ in range(8):
            await guarded.failure(eve, MOVE, move("web"))
        await guarded.failure(guarded.certificate("bob", "inject"), MOVE, move("web"))
        watching = asyncio.create_task(guarded.authorization.watch())
        await asyncio.sleep(0)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    lines = [(one["principal"], one["method"], one.get("left_out")) for one in _audited(caplog)]
    move_interval = "IntervalService/MoveInterval"
    assert lines == [
        ("certificate:eve", move_interval, None),
        ("certificate:bob", move_interval, None),
        ("certificate:eve", move_interval, 7),
    ]


async def test_a_line_names_the_address_of_a_consoles_user(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    ada = delegated(Principal("certificate:ada", roles=("operate",)), "192.0.2.7")
    bob = delegated(Principal("certificate:bob"), "192.0.2.8")
    with caplog.at_level(logging.INFO, "millwheel.audit"):
        await guarded.failure(guarded.identities.server, MOVE, move("web"), metadata=ada)
        await guarded.failure(guarded.identities.server, MOVE, move("web"), metadata=bob)
        await guarded.failure(guarded.certificate("eve", "operate"), MOVE, move("web"), metadata=ada)
        await guarded.failure(guarded.certificate("eve", "operate"), MOVE, move("web"), metadata=ada[1:])

    def peers() -> dict[tuple[str, bool], list[str]]:
        """The addresses by person and refusal. A call that was repeated wrote two lines."""
        found: dict[tuple[str, bool], list[str]] = {}
        for line in _audited(caplog):
            found.setdefault((line["principal"], line["outcome"] == "PERMISSION_DENIED"), []).append(line["peer"])
        return found

    # A line may be written after its answer is sent.
    found = await until(peers, holds=lambda one: len(one) == 4)
    through = {key: lines[0] for key, lines in found.items()}
    assert through.pop(("certificate:ada", False)).startswith("192.0.2.7 through ipv")
    assert through.pop(("certificate:bob", True)).startswith("192.0.2.8 through ipv")
    assert set(through) == {("certificate:eve", False), ("certificate:eve", True)}
    assert all(peer.startswith("ipv") for peer in through.values()), "only a process says where a person is"


async def test_only_a_process_may_act_for_others(guarded: Guarded) -> None:
    ada = delegated(Principal("certificate:ada", roles=("operate",)))
    assert (await guarded.failure(guarded.identities.server, MOVE, move("web"), metadata=ada)).code is LET
    error = await guarded.failure(guarded.certificate("eve", "admin"), MOVE, move("web"), metadata=ada)
    assert (error.code, error.reason) == (FailureCode.PERMISSION_DENIED, "ROLE_MISSING")
    nobody = delegated(Principal("certificate:bob"))
    error = await guarded.failure(guarded.identities.server, MOVE, move("web"), metadata=nobody)
    assert error.code is FailureCode.PERMISSION_DENIED, "the process's own roles do not count for the person"


async def _one_and_silence() -> AsyncIterator[Any]:
    yield deliver("web/clicks")
    await asyncio.Event().wait()


def _opened(channel: grpc.aio.Channel) -> Any:
    """A stream of deliveries that sends one and stays open."""
    return DeliveryServiceStub(channel).Deliver(_one_and_silence(), timeout=patience(5))


async def _end(call: Any) -> RequestError:
    """Wait for the error that ends a stream."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await _all(call)
    return from_rpc_error(caught.value)


async def _all(call: Any) -> None:
    async for _ in call:
        pass


async def test_a_revocation_ends_an_open_stream(guarded: Guarded) -> None:
    """The stream waits for a message. Its end has the reason, and the handler ends too."""
    eve = guarded.certificate("eve", "inject")
    watching = asyncio.create_task(guarded.authorization.watch())
    try:
        async with channel_as(guarded.address, eve) as channel:
            call = _opened(channel)
            await until(lambda: guarded.reading.seen)
            path = guarded.identities.policy('[revoked]\nprincipals = ["certificate:eve"]\n')
            os.utime(path)
            error = await _end(call)
            assert (error.code, error.reason) == (FailureCode.UNAUTHENTICATED, "CREDENTIAL_REVOKED")
    finally:
        watching.cancel()
    assert guarded.reading.principals == ["certificate:eve"]
    assert await guarded.failure(guarded.identities.server, DELIVER, deliver("web/clicks"))


async def test_a_role_that_is_taken_away_ends_a_stream(guarded: Guarded) -> None:
    eve = guarded.certificate("eve")
    _policy(guarded, grant("certificate:eve", ("inject",), ["web"]))
    async with channel_as(guarded.address, eve) as channel:
        call = _opened(channel)
        await until(lambda: guarded.reading.seen)
        _policy(guarded, grant("certificate:eve", ("inject",), ["shop"]))
        watching = asyncio.create_task(guarded.authorization.watch())
        error = await _end(call)
        watching.cancel()
    assert (error.code, error.reason) == (FailureCode.PERMISSION_DENIED, "ROLE_MISSING")


async def test_a_certificate_ends_while_its_connection_is_open(guarded: Guarded) -> None:
    short = guarded.certificate("eve", "operate", ends_in=timedelta(seconds=2))
    async with channel_as(guarded.address, short) as channel:
        calls: Any = channel
        call = calls.unary_unary(MOVE, lambda one: one.SerializeToString())
        reasons: list[str] = []
        while not reasons or reasons[-1] != "CERTIFICATE_EXPIRED":
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(move("web"), timeout=patience(10))
            reasons.append(from_rpc_error(caught.value).reason)
            await asyncio.sleep(0.2)
        assert from_rpc_error(caught.value).code is FailureCode.UNAUTHENTICATED
    assert set(reasons) <= {"METHOD_UNKNOWN", "CERTIFICATE_EXPIRED"}


async def test_health_is_for_everybody_with_a_certificate(guarded: Guarded) -> None:
    async with channel_as(guarded.address, guarded.certificate("nobody")) as channel:
        calls: Any = channel
        call = calls.unary_unary("/grpc.health.v1.Health/Check")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"", timeout=patience(10))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED, "this server has no health service, and says so"


async def test_refusals_and_changes_are_in_the_audit_log(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    eve = guarded.certificate("eve", "inject")
    with caplog.at_level(logging.INFO, "millwheel.audit"):
        await guarded.failure(eve, MOVE, move("web"))
        await guarded.failure(eve, OPEN, injection_pb2.OpenInjectorRequest(stream="web/clicks", process="p"))
        await guarded.failure(eve, DELIVER, deliver("web/clicks", values=[b"confidential"]))
        await guarded.failure(guarded.certificate("ann", "read"), LIST)
    lines: list[Any] = [getattr(record, "fields") for record in caplog.records]  # noqa: B009  # logging adds it
    assert [(one["principal"], one["method"], one["outcome"]) for one in lines] == [
        ("certificate:eve", "IntervalService/MoveInterval", "PERMISSION_DENIED"),
        ("certificate:eve", "InjectionService/OpenInjector", "UNIMPLEMENTED"),
        ("certificate:eve", "DeliveryService/Deliver", "OPENED"),
    ]
    assert lines[1]["request"] == {"stream": "web/clicks", "process": "p"}
    assert lines[1]["topologies"] == ["web"]
    assert all("127.0.0.1" in one["peer"] for one in lines)
    assert "confidential" not in caplog.text


async def test_a_change_for_the_whole_cluster_names_its_topology(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    guarded.authorization.describe = lambda name: {"name": name}
    root = guarded.certificate("root", "admin")
    with caplog.at_level(logging.INFO, "millwheel.audit"):
        await guarded.failure(root, QUOTA, control_pb2.SetTopologyQuotaRequest(name="web"))
        await guarded.failure(root, SNAPSHOT, snapshot_pb2.CreateSnapshotRequest(topology="web"))
        # A line is written after the answer was sent.
        await until(lambda: len(caplog.records) == 2, patience(10))
    lines: list[Any] = [getattr(record, "fields") for record in caplog.records]  # noqa: B009  # logging adds it
    assert [(one["topologies"], one["before"]) for one in lines] == [(["web"], {"web": {"name": "web"}})] * 2
