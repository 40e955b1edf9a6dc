"""Passwords, tokens and private keys are in no log, error, command's output, page or representation."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest
from aiohttp import ClientSession, TCPConnector

from deploy.local.child import free_ports
from millwheel.config import ConfigError, load
from millwheel.rpc.identity import TokenSource, process_token
from tests.access.identities import Identities, grant
from tests.access.test_cluster import WORDS
from tests.daemons.process import DaemonProcess, metrics_page
from tests.daemons.test_processes import embedded
from tests.system.server import run_cli

PASSWORD = "hunter2-very-secret"
CONFIG = f'[coordinator]\nusername = "root"\npassword = "{PASSWORD}"\n[store]\npassword = "{PASSWORD}"\n'


@pytest.mark.parametrize("output", ["table", "json", "yaml"])
async def test_config_show_masks_secrets(tmp_path: Path, output: str) -> None:
    path = tmp_path / "millwheel.toml"
    path.write_text(CONFIG)
    shown = await run_cli("", "config", "show", "--config", str(path), "-o", output)
    assert shown.code == 0, shown.err
    assert PASSWORD not in shown.out + shown.err
    assert shown.out.count("********") == 2


def test_no_representation_has_a_secret(tmp_path: Path) -> None:
    path = tmp_path / "millwheel.toml"
    path.write_text(CONFIG)
    configuration = load(path)
    assert configuration.settings.store.password == PASSWORD
    assert PASSWORD not in repr(configuration)
    assert PASSWORD not in repr(TokenSource(PASSWORD))
    with pytest.raises(ConfigError) as caught:
        load(path, {"MILLWHEEL_STORE_PASSWORD": f"{PASSWORD}\nx", "MILLWHEEL_STORE_KIND": "none"})
    assert PASSWORD not in str(caught.value)


def test_a_token_that_cannot_be_read_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millwheel.rpc.identity.chosen_token", [])
    file = tmp_path / "token"
    file.write_text(f"{PASSWORD} {PASSWORD}")
    monkeypatch.setenv("MILLWHEEL_TOKEN_FILE", str(file))
    source = process_token()
    assert source is not None
    with pytest.raises(Exception, match="has no token in one line") as caught:
        source.read()
    assert PASSWORD not in str(caught.value)


async def test_a_daemons_log_and_pages_have_no_secrets(tmp_path: Path) -> None:
    """The log has everything (debug), calls are refused and made, and the console is used."""
    identities, port = Identities(tmp_path / "certificates"), free_ports(1)[0]
    server, dev = identities.server, identities.certificate("dev")
    tls = {"rpc.tls_ca": server.ca, "rpc.tls_cert": server.cert, "rpc.tls_key": server.key}
    more = {"security.policy": identities.policy(grant("token:ada", ("admin",))), "master.ui_port": port}
    secret = {"coordinator.password": PASSWORD, "store.password": PASSWORD, "logging.level": "debug"}
    tokens = [identities.token("ada"), identities.token("ada", aud="billing"), identities.token("bob")]
    options = ("--tls-ca", str(dev.ca), "--tls-cert", str(dev.cert), "--tls-key", str(dev.key))
    said, master = "", DaemonProcess("master", tmp_path / "log", {**embedded(tmp_path), **tls, **more, **secret})
    async with master:
        ready = await master.line("ready")
        context = ssl.create_default_context(cafile=str(server.ca))
        async with ClientSession(connector=TCPConnector(ssl=context)) as browser:
            for token in tokens:
                for words in (("topology", "list"), ("topology", "submit", WORDS), ("cluster", "health", "-o", "json")):
                    done = await run_cli(ready["address"], *options, "--token", token, *words)
                    said += done.out + done.err
                async with browser.post(f"https://localhost:{port}/login", json={"token": token}) as response:
                    said += await response.text()
                async with browser.get(f"https://localhost:{port}/api/v1/ClusterService/GetOverview") as response:
                    said += await response.text()
        said += metrics_page(ready["metrics"])
        assert await master.stop() == 0
    said += master.log.read_text()
    assert "token:ada" in said
    assert "ROLE_MISSING" in said
    keys = [line for path in (server.key, dev.key) for line in path.read_text().splitlines() if "-" not in line[:1]]
    assert len(keys) > 2
    for value in (PASSWORD, *tokens, *(token.rpartition(".")[2] for token in tokens), *keys):
        assert value not in said
    assert PASSWORD not in os.environ.values()
