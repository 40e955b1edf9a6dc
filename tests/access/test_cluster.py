"""A whole cluster with roles: its daemons do their work, and people do what the policy lets them, and no more."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from millwheel.rpc.identity import TlsFiles
from tests.access.identities import Identities, grant
from tests.daemons.together import Together, together
from tests.patience import until
from tests.system import words
from tests.system.server import Finished, run_cli

WORDS = f"{words.__file__}:words"
POLICY = (
    grant("certificate:dev", ("submit",), ["words"])
    + grant("certificate:source", ("inject",), ["words"])
    + grant("token:ops", ("operate",))
    + grant("certificate:other", ("admin",), ["other"])
    + grant("certificate:near", ("admin",), ["wordz"])
    + grant("certificate:both", ("read",), ["wordz", "words"])
)


class People:
    """A cluster, and commands that people run on it."""

    def __init__(self, identities: Identities, cluster: Together) -> None:
        self.identities = identities
        self.cluster = cluster

    async def run(self, who: TlsFiles, *words: str, token: str = "") -> Finished:
        """Run a command as one person."""
        tls = ("--tls-ca", str(who.ca), "--tls-cert", str(who.cert), "--tls-key", str(who.key))
        sent = ("--token", token) if token else ()
        return await run_cli(self.cluster.address, *tls, *sent, *words)

    async def refused(self, who: TlsFiles, *words: str, token: str = "") -> dict[str, str]:
        """Run a command that must be refused. Returns the error."""
        done = await self.run(who, *words, "-o", "json", token=token)
        assert done.code == 7, (words, done)
        error: dict[str, str] = json.loads(done.err.splitlines()[-1])["error"]
        assert error["remedy"]
        return error


@pytest.fixture
async def people(tmp_path: Path) -> AsyncIterator[People]:
    identities = Identities(tmp_path / "certificates")
    server = identities.server
    settings = {"rpc.tls_ca": server.ca, "rpc.tls_cert": server.cert, "rpc.tls_key": server.key}
    flags = {name: str(path) for name, path in settings.items()}
    async with together(tmp_path, {**flags, "security.policy": str(identities.policy(POLICY))}) as cluster:
        yield People(identities, cluster)


async def test_people_do_what_their_roles_let_them(people: People, caplog: pytest.LogCaptureFixture) -> None:
    dev, source = (people.identities.certificate(name) for name in ("dev", "source"))
    ops, other = people.identities.token("ops"), people.identities.certificate("other")
    nobody = people.identities.certificate("nobody")

    done = await people.run(dev, "topology", "submit", WORDS, "--wait", "60")
    assert done.code == 0, done.err
    done = await people.run(source, "stream", "produce", "words/spoken", '{"text": "hello"}')
    assert done.code == 0, done.err
    for name, hint in (("near", "there is no topology 'wordz': "), ("both", "(did you mean 'words'?)")):
        for verb in ("describe", "pause")[: 1 + (name == "near")]:
            unknown = await people.run(people.identities.certificate(name), "topology", verb, "wordz")
            assert (unknown.code, hint in unknown.err) == (3, True), "a hint names what the caller may read"

    async def counted() -> bool:
        shown = await people.run(dev, "key", "inspect", "words/count", "hello", "-o", "json")
        return shown.code == 0 and "1" in str(json.loads(shown.out)["state"])

    before = people.cluster.coordinator
    revision = (await before.list("")).revision
    produce = ("stream", "produce", "words/spoken", '{"text": "hello"}')
    for who, token, command in (
        (nobody, "", ("topology", "list")),
        (source, "", ("topology", "describe", "words")),
        (source, "", ("topology", "pause", "words")),
        (dev, "", ("topology", "pause", "words")),
        (dev, "", ("topology", "cancel", "words", "--yes")),
        (dev, "", ("interval", "split", "words/count", "--at", "m")),
        (dev, "", produce),
        (other, "", produce),
        (other, "", ("topology", "update", WORDS)),
        (other, "", ("key", "inspect", "words/count", "hello")),
        (other, "", ("watermark", "show", "words")),
        (other, "", ("stream", "tail", "words/seen")),
        (people.identities.server, "", ("topology", "pause", "words")),
        (source, ops, ("topology", "submit", WORDS)),
        (source, ops, produce),
        (source, people.identities.token("ops", aud="billing"), ("topology", "list")),
    ):
        await people.refused(who, *command, token=token)
    assert (await before.list("")).revision == revision, "nothing has changed"
    error = await people.refused(dev, "topology", "pause", "words")
    assert error["reason"] == "ROLE_MISSING"
    assert error["message"] == "certificate:dev may not call PauseTopology: it needs role operate for topology 'words'"

    caplog.clear()
    with caplog.at_level(logging.INFO, "millwheel.audit"):
        assert (await people.run(nobody, "topology", "pause", "words", token=ops)).code == 0
    (line,) = [getattr(record, "fields") for record in caplog.records if record.name == "millwheel.audit"]  # noqa: B009
    assert (line["principal"], line["method"], line["outcome"]) == ("token:ops", "TopologyService/PauseTopology", "OK")
    assert (line["before"]["words"]["state"], line["after"]["words"]["state"]) == ("running", "paused")
    assert (await people.run(nobody, "topology", "resume", "words", token=ops)).code == 0
    listed = json.loads((await people.run(other, "topology", "list", "-o", "json")).out)
    assert listed == [], "what one may not read is not listed"
    assert len(json.loads((await people.run(dev, "topology", "list", "-o", "json")).out)) == 1
    await until(counted)


async def test_wrong_certificates_change_nothing(people: People) -> None:
    """Handshakes fail before a call is made. The command says what is wrong with its own files."""
    old = people.identities.certificate("dev", ends_in=timedelta(hours=-1))
    error = await people.refused(old, "topology", "submit", WORDS)
    assert error["reason"] == "CERTIFICATE_EXPIRED"
    assert str(old.cert) in error["message"]
    stranger = Identities(people.identities.folder / "stranger").certificate("dev")
    mixed = TlsFiles(people.identities.server.ca, stranger.cert, stranger.key)
    error = await people.refused(mixed, "topology", "submit", WORDS)
    assert error["reason"] == "CERTIFICATE_OF_OTHER_CA"
    done = await run_cli(people.cluster.address, "topology", "submit", WORDS, "--patience", "0")
    assert done.code == 4
    assert "if it serves TLS, name its files" in done.err
    done = await run_cli(people.cluster.address, "--token", people.identities.token("ops"), "topology", "list")
    assert done.code == 7
    assert "a token is never sent without TLS" in done.err
    dev = people.identities.certificate("dev")
    assert json.loads((await people.run(dev, "topology", "list", "-o", "json")).out) == []
