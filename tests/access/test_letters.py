"""Who may handle dead letters by the console: who holds `operate` for the topology. The audit log names the person."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, TCPConnector

from deploy.local.child import free_ports
from tests.access.identities import Identities, grant
from tests.console import shop
from tests.daemons.together import together
from tests.patience import patience, until
from tests.system.server import run_cli

POLICY = (
    grant("certificate:dev", ("submit", "inject"), ["bills"])
    + grant("token:reader", ("read",), ["bills"])
    + grant("token:ops", ("operate",), ["bills"])
    + grant("token:other", ("admin",), ["other"])
)


async def test_letters_are_handled_by_operators_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    identities, port = Identities(tmp_path / "certificates"), free_ports(1)[0]
    server, dev = identities.server, identities.certificate("dev")
    tls = {"rpc.tls_ca": str(server.ca), "rpc.tls_cert": str(server.cert), "rpc.tls_key": str(server.key)}
    flags = {**tls, "security.policy": str(identities.policy(POLICY))}
    console = {"master.ui_port": str(port), "master.ui_read_only": "false"}
    context = ssl.create_default_context(cafile=str(server.ca))
    async with together(tmp_path, flags, masters=[console]) as cluster:
        shown = ("--tls-ca", str(dev.ca), "--tls-cert", str(dev.cert), "--tls-key", str(dev.key))
        for command in (
            ("topology", "submit", f"{shop.__file__}:bills", "--wait", "60"),
            ("stream", "produce", "bills/orders", '{"customer": "ann", "cents": 5}'),
        ):
            done = await run_cli(cluster.address, *shown, *command)
            assert done.code == 0, done.err
        async with ClientSession(connector=TCPConnector(ssl=context)) as http:

            async def ask(who: str, name: str, **request: Any) -> tuple[int, Any]:
                url = f"https://localhost:{port}/api/v1/LetterHandlingService/{name}"
                headers = {"Authorization": f"Bearer {identities.token(who)}"}
                async with http.post(url, json={"topology": "bills", **request}, headers=headers) as response:
                    return response.status, await response.json()

            status, listed = await until(
                lambda: ask("reader", "ListLetters"), patience(30), holds=lambda one: one[1].get("letters")
            )
            ids, log = [one["id"] for one in listed["letters"]], listed["log"]
            assert (status, ids) == (200, ["0"])
            assert (await ask("reader", "PlanLetterHandling"))[1]["replay"]["ids"] == ids
            for who, name in (("reader", "ReplayLetters"), ("reader", "DiscardLetters"), ("other", "ReplayLetters")):
                status, answer = await ask(who, name, ids=ids, log=log)
                assert (status, answer["error"]["reason"]) == (403, "ROLE_MISSING"), (who, name)
            assert (await ask("other", "GetLetter", id=0))[0] == 403
            caplog.clear()
            with caplog.at_level(logging.INFO, "millwheel.audit"):
                assert (await ask("ops", "ReplayLetters", ids=ids, log=log))[1]["replayed"] == ids
            audited = [getattr(one, "fields") for one in caplog.records if one.name == "millwheel.audit"]  # noqa: B009
            assert [(one["principal"], one["method"]) for one in audited] == [
                ("token:ops", "LetterHandlingService/ReplayLetters")
            ]
            assert (audited[0]["request"]["ids"], audited[0]["answer"]["replayed"]) == ("0", "0")
            status, answer = await ask("ops", "ListLetters", letters={"state": "waiting"})
            assert [one["replay_of"] for one in answer["letters"]] == ["0"], "its record has failed again"
            assert (await ask("ops", "DiscardLetters", ids=["1"], log=log))[1]["discarded"] == ["1"]
