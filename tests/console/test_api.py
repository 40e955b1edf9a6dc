"""The console's API over HTTP, against a real server: what it answers, and what it refuses."""

from __future__ import annotations

import base64
import gzip
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientConnectionError, ClientSession
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import MethodOptions

from deploy.local.child import free_ports
from millwheel.rpc.failures import RequestError
from millwheel.rpc.identity import TlsFiles
from millwheel.server.console.calls import CALLS
from millwheel.server.console.guard import HEADERS
from millwheel.server.console.serving import serve_console
from millwheel.server.dev_server import DevServer
from millwheel.store.memory import MemoryStore
from tests.console.conftest import Inject, Start
from tests.console.shop import REFUSED
from tests.coordination.memory import MemoryCoordinator
from tests.master.replica import replica
from tests.patience import patience, until
from tests.system.server import ROOT

OVERVIEW = "api/v1/ClusterService/GetOverview"
ACCOUNTS = {"topology": "shop", "computation": "accounts"}
_HERE = ROOT / "tests" / "rpc" / "certificates"
_TLS = TlsFiles(_HERE / "one-ca.pem", _HERE / "one.pem", _HERE / "one.key")


@pytest.fixture
async def http() -> AsyncIterator[ClientSession]:
    async with ClientSession() as session:
        yield session


async def get(http: ClientSession, url: str, **headers: str) -> tuple[int, Any]:
    """The status of a request, and its JSON."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with http.get(url, headers=named) as response:
        return response.status, await response.json()


async def post(http: ClientSession, url: str, body: object) -> tuple[int, Any]:
    async with http.post(url, json=body) as response:
        return response.status, await response.json()


async def intervals(http: ClientSession, server: DevServer) -> Any:
    """The intervals of shop/accounts."""
    _, listed = await post(http, f"{server.console}api/v1/IntervalService/ListIntervals", ACCOUNTS)
    return listed["intervals"]


async def overview(http: ClientSession, server: DevServer) -> Any:
    status, answer = await get(http, server.console + OVERVIEW)
    assert status == 200
    return answer


async def test_each_call_without_side_effects_answers_in_json(
    server: DevServer, http: ClientSession, start: Start, inject: Inject
) -> None:
    await start("shop")
    await start("bills")
    await inject("ann", into="bills/orders")
    listing = partial(post, http, f"{server.console}api/v1/LetterHandlingService/ListLetters", {"topology": "bills"})
    _, listed = await until(listing, patience(30), holds=lambda found: found[1].get("letters"))
    letter = listed["letters"][0]["id"]
    (accounts, _), name = await intervals(http, server), {"topology": "shop", "computation": "accounts"}
    needed = {
        "StreamService/ReadStream": {"stream": "shop/alerts"},
        **{path: name for path in CALLS if path.startswith("KeyService/")},
        "IntervalService/GetInterval": {"interval": {"journal": accounts["interval"]["journal"]}},
        "IntervalService/PlanIntervalChange": {"split": {"interval": {**name, "key": "YQ=="}, "at": "YWI="}},
        "TopologyService/GetTopology": {"name": "shop"},
        "InjectionService/GetBatchCursor": {"query": "q"},
        "ClusterService/ExplainHold": {"topology": "shop", "computation": "accounts"},
        "LetterHandlingService/ListLetters": {"topology": "shop"},
        "LetterHandlingService/GetLetter": {"topology": "bills", "id": letter},
        "LetterHandlingService/PlanLetterHandling": {"topology": "shop"},
        "TopologyService/ValidateTopology": {"spec": {"name": "other"}},
    }
    _, listed = await get(http, f"{server.console}api/v1")
    assert [one["path"] for one in listed["calls"]] == [f"/api/v1/{path}" for path in CALLS]
    for path, call in CALLS.items():
        if call.access.changes:
            continue
        call_it = partial(post, http, f"{server.console}api/v1/{path}", needed.get(path, {}))
        # An owner answers once it has opened its intervals.
        status, answer = await until(call_it, patience(30), holds=lambda found: found[0] != 503)
        assert status == 200, (path, answer)
        assert set(answer) <= {field.name for field in call.response.DESCRIPTOR.fields}


def test_the_page_of_the_api_names_all_calls_that_are_offered() -> None:
    verbs = ("Get", "List", "Read", "Explain", "Validate", "Plan")
    changes = {path for path, call in CALLS.items() if call.access.changes}
    assert {path for path in CALLS if not path.partition("/")[2].startswith(verbs)} == changes
    assert changes == {
        *(f"IntervalService/{name}" for name in ("MoveInterval", "SplitInterval", "MergeIntervals")),
        *(f"LetterHandlingService/{name}" for name in ("ReplayLetters", "DiscardLetters")),
    }
    page = (ROOT / "docs" / "console.md").read_text()
    assert [path for path in CALLS if f"`{path}`" not in page] == []


def test_the_api_states_what_the_protos_state_of_a_call() -> None:
    described = {path: call.describe() for path, call in CALLS.items()}
    assert [(described[path]["changes"], described[path]["roles"]) for path in _STATED] == list(_STATED.values())
    for path, call in CALLS.items():
        assert described[path]["changes"] == call.access.changes
        safe = _method(path).GetOptions().idempotency_level == MethodOptions.NO_SIDE_EFFECTS
        assert safe != call.access.changes, path


_STATED = {
    "TopologyService/GetTopology": (False, [["read"]]),
    "TopologyService/ValidateTopology": (False, [["submit"], ["read"]]),
    "InjectionService/GetBatchCursor": (False, [["inject", "read"]]),
    "IntervalService/PlanIntervalChange": (False, [["read"]]),
    "IntervalService/SplitInterval": (True, [["operate"]]),
    "LetterHandlingService/ListLetters": (False, [["read"]]),
    "LetterHandlingService/ReplayLetters": (True, [["operate"]]),
}


def _method(path: str) -> Any:
    service, _, name = path.partition("/")
    return descriptor_pool.Default().FindServiceByName(f"millwheel.v1.{service}").methods_by_name[name]


async def test_other_changes_are_not_offered(server: DevServer, http: ClientSession, start: Start) -> None:
    await start("shop")
    for method in ("GET", "POST", "PUT", "DELETE"):
        url = f"{server.console}api/v1/TopologyService/CancelTopology"
        async with http.request(method, url, json={"name": "shop"}) as response:
            assert response.status == 404
    assert (await overview(http, server))["topologies"][0]["state"] == "TOPOLOGY_STATE_RUNNING"


async def test_a_call_without_a_needed_field_names_the_field(server: DevServer, http: ClientSession) -> None:
    for path, call in CALLS.items():
        status, answer = await post(http, f"{server.console}api/v1/{path}", {})
        assert status in (200, 400), (path, answer)
        for field in call.describe()["required"]:
            assert (answer["error"]["code"], answer["error"]["reason"]) == ("INVALID_ARGUMENT", "FIELD_MISSING")
            assert f"`{field}`" in answer["error"]["message"]


async def test_an_overview_has_rows_with_sums_and_watermarks(
    server: DevServer, http: ClientSession, start: Start, inject: Inject
) -> None:
    await start("shop")
    await inject("ann", "bob", "cyd")

    async def accounts() -> Any:
        (shop,) = (await overview(http, server))["topologies"]
        return shop["computations"][0]

    row = await until(accounts, patience(30), holds=lambda one: one["hooks"] and one["keys"] == "3")
    assert (row["name"], row["intervals"], row["workers"], row["without_owner"]) == ("accounts", 2, ["dev"], 0)
    assert row["hooks"][0]["calls"] == "3"
    assert row["columns"]["by_records"].startswith("it has no tumbling windows")
    assert row["watermark"]["held_by"]
    flowing = await until(accounts, patience(30), holds=lambda one: one["traffic"])
    assert [one["stream"] for one in flowing["traffic"]] == ["shop/orders"]
    await until(
        lambda: overview(http, server), patience(30), holds=lambda one: one["health"]["store"]["commits_per_second"] > 0
    )
    whole = await overview(http, server)
    streams = {one["name"]: one for one in whole["topologies"][0]["streams"]}
    assert streams["shop/accounts"]["written_by"] == ["shop/accounts"]
    assert streams["shop/accounts"]["read_by"] == ["shop/alerts", "shop/days"]
    assert streams["shop/alerts"]["log"]["worker"] == "dev"
    assert [(one["stream"], one["process"]) for one in whole["injectors"]] == [("shop/orders", "p")]
    assert whole["health"]["masters"] == [{"address": server.address, "leads": True, "console": server.console}]
    assert (await get(http, f"{server.console}{OVERVIEW}?topology=shop"))[1]["topologies"][0]["name"] == "shop"


async def test_a_hook_that_raises_is_shown_and_explained(
    server: DevServer, http: ClientSession, start: Start, inject: Inject
) -> None:
    await start("shop")
    await inject("ann", REFUSED)

    async def alerts() -> Any:
        return (await overview(http, server))["topologies"][0]["computations"][1]

    row = await until(alerts, patience(30), holds=lambda one: "failures" in one)
    assert "no alert for eve" in row["failures"]["text"]
    failed = row["failures"]["failures"]["oldest"][0]
    assert (failed["error"], base64.b64decode(failed["key"])) == ("ValueError", REFUSED.encode())
    await until(alerts, patience(30), holds=lambda one: one["system_lag_seconds"] > 0)
    url = f"{server.console}api/v1/ClusterService/ExplainHold?topology=shop&computation=days"
    # The authority learns of the reports in any order.
    _, why = await until(lambda: get(http, url), patience(30), holds=lambda one: one[1].get("kind") == "production")
    assert why["chain"][0]["name"] == "shop/days"
    assert why["name"] == "shop/accounts"
    assert any("no alert for eve" in text for text in why["notes"])


async def test_errors_have_a_status_and_say_what_to_do(server: DevServer, http: ClientSession) -> None:
    status, answer = await get(http, f"{server.console}api/v1/TopologyService/GetTopology?name=none")
    assert (status, answer["error"]["code"]) == (404, "NOT_FOUND")
    assert set(answer["error"]) == {"code", "reason", "message", "remedy", "problems"}
    status, answer = await get(http, f"{server.console}{OVERVIEW}?color=red")
    assert (status, answer["error"]["reason"]) == (400, "REQUEST_MALFORMED")
    assert "color" in answer["error"]["message"]
    assert (await post(http, server.console + OVERVIEW, [1]))[0] == 400
    async with http.post(server.console + OVERVIEW, data="{}", headers={"Content-Type": "text/plain"}) as response:
        assert response.status == 415
    async with http.put(server.console + OVERVIEW) as response:
        assert response.status == 405
    whole = BytesIO(b" " * (2 << 20))
    async with http.post(
        server.console + OVERVIEW, data=whole, headers={"Content-Type": "application/json"}
    ) as response:
        assert response.status == 413
        assert (await response.json())["error"]["code"] == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (OVERVIEW, {"Host": "localhost:1"}, 200),
        (OVERVIEW, {"Host": "[::1]:8433"}, 200),
        (OVERVIEW, {"Host": "10.0.0.7"}, 200),
        (OVERVIEW, {"Host": "evil.example"}, 403),
        (OVERVIEW, {"Host": "127.0.0.1.evil.example:80"}, 403),
        ("", {"Host": "evil.example"}, 403),
        (OVERVIEW, {"Sec_Fetch_Site": "same-origin"}, 200),
        (OVERVIEW, {"Sec_Fetch_Site": "same-site"}, 403),
        (OVERVIEW, {"Sec_Fetch_Site": "cross-site"}, 403),
        (OVERVIEW, {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}, 403),
        ("app.js", {"Sec_Fetch_Site": "cross-site"}, 403),
        (OVERVIEW, {"Host": "localhost:1", "Origin": "http://localhost:1"}, 200),
        (OVERVIEW, {"Origin": "https://evil.example"}, 403),
        (OVERVIEW, {"Origin": "null"}, 403),
    ],
)
async def test_other_sites_and_other_hosts_are_refused(
    server: DevServer, http: ClientSession, path: str, headers: dict[str, str], status: int
) -> None:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with http.get(server.console + path, headers=named) as response:
        assert response.status == status
        assert {name: response.headers.get(name) for name in HEADERS} == HEADERS
        assert not [name for name in response.headers if name.startswith("Access-Control")]


async def test_a_link_from_another_site_may_open_the_page(server: DevServer, http: ClientSession) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    async with http.get(server.console, headers=headers) as response:
        assert response.status == 200


async def test_the_page_and_its_files_are_served_and_cached(server: DevServer, http: ClientSession) -> None:
    async with http.get(server.console) as response:
        page = await response.text()
        assert response.content_type == "text/html"
    assert "<script>" not in page
    assert "style=" not in page
    for path, kind in (
        ("app.js", "text/javascript"),
        ("views/graph.js", "text/javascript"),
        ("console.css", "text/css"),
        ("vendor/dagre.js", "text/javascript"),
        ("vendor/htm.LICENSE.txt", "text/plain"),
    ):
        async with http.get(server.console + path) as response:
            assert (response.status, response.content_type) == (200, kind)
            tag = response.headers["ETag"]
        async with http.get(server.console + path, headers={"If-None-Match": tag}) as response:
            assert response.status == 304
    page = (ROOT / "millwheel" / "server" / "console" / "static" / "app.js").read_text()
    views = re.findall(r'^  \["(\w+)", "', page, re.MULTILINE)
    assert len(views) > 5
    for view in views:
        async with http.get(server.console + view, allow_redirects=False) as response:
            assert (response.status, response.headers["Location"]) == (302, f"/#/{view}")
    for path in ("nothing.js", "../site.py", "%2e%2e/site.py", "views"):
        async with http.get(server.console + path) as response:
            assert response.status == 404


async def test_a_file_under_its_version_is_kept_for_good(server: DevServer, http: ClientSession) -> None:
    async with http.get(server.console) as response:
        page = await response.text()
    assert response.headers["Cache-Control"] == "no-cache"
    (script,) = re.findall(r'type="module" src="/([^"]+)"', page)
    assert re.fullmatch(r"[0-9a-f]{12}/app\.js", script)
    loaded = [script, *re.findall(r'(?:stylesheet|modulepreload)" href="/([^"]+)"', page)]
    for path in loaded:
        async with http.get(server.console + path) as response:
            assert (response.status, response.headers["Cache-Control"].split()[-1]) == (200, "immutable")
            named = re.findall(r"(?:from |import\()\"/([^\"]+)\"", await response.text())
        assert all(one.startswith(script.partition("/")[0]) for one in named), (path, named)
    assert "/api/v1/ClusterService/GetOverview" in page, "the API has no version of the page"


@pytest.mark.parametrize("path", ["app.js", "api/v1"])
async def test_what_is_large_is_compressed_for_who_takes_it(server: DevServer, http: ClientSession, path: str) -> None:
    async with ClientSession(auto_decompress=False) as plain:
        async with plain.get(server.console + path) as response:
            assert response.headers["Content-Encoding"] == "gzip"
            zipped = await response.read()
        async with plain.get(server.console + path, headers={"Accept-Encoding": "identity"}) as response:
            assert "Content-Encoding" not in response.headers
            content = await response.read()
    assert gzip.decompress(zipped) == content
    assert len(zipped) < len(content) / 2


async def test_a_standby_shows_the_cluster_and_leads_if_it_must(http: ClientSession) -> None:
    coordinator, store = MemoryCoordinator(), MemoryStore()
    async with AsyncExitStack() as stack:
        leading = await stack.enter_async_context(AsyncExitStack())
        leader, first = await leading.enter_async_context(replica(coordinator, store, ttl=patience(1)))
        await first.leading()
        standby, _ = await stack.enter_async_context(replica(coordinator, store, ttl=patience(1)))
        url = f"{await serve_console(stack, standby, '127.0.0.1', 0)}api/v1/ClusterService/GetClusterHealth"
        _, health = await get(http, url)
        assert {"address": leader, "leads": True, "console": ""} in health["masters"]
        await leading.aclose()
        found = await until(lambda: get(http, url), patience(30), holds=lambda answer: answer[0] == 200)
        assert {"address": standby, "leads": True, "console": ""} in found[1]["masters"]
    await coordinator.close()


async def test_without_a_master_the_answer_says_so(http: ClientSession) -> None:
    away = f"127.0.0.1:{free_ports(1)[0]}"
    async with AsyncExitStack() as stack:
        url = await serve_console(stack, away, "127.0.0.1", 0)
        status, answer = await get(http, url + OVERVIEW)
        assert (status, answer["error"]["code"]) == (503, "UNAVAILABLE")
        assert away in answer["error"]["message"]


async def test_with_tls_a_browser_shows_a_certificate(http: ClientSession) -> None:
    shown = ssl.create_default_context(cafile=str(_TLS.ca))
    none = ssl.create_default_context(cafile=str(_TLS.ca))
    shown.load_cert_chain(_TLS.cert, _TLS.key)
    async with AsyncExitStack() as stack:
        url = await serve_console(stack, "127.0.0.1:1", "127.0.0.1", 0, _TLS)
        assert url.startswith("https://")
        named = url.replace("127.0.0.1", "localhost")
        async with http.get(named, ssl=shown) as response:
            assert response.status == 200
        with pytest.raises(ClientConnectionError):
            await http.get(named, ssl=none)


async def test_on_every_address_the_advertised_host_is_its_name(server: DevServer, http: ClientSession) -> None:
    async with AsyncExitStack() as stack:
        url = await serve_console(stack, server.address, "0.0.0.0", 0, name="mw-1.test")
        host, port = url.removeprefix("http://").rstrip("/").split(":")
        assert host == "mw-1.test"
        async with http.get(f"http://127.0.0.1:{port}/", headers={"Host": f"{host}:{port}"}) as response:
            assert response.status == 200


async def test_a_port_in_use_is_an_error_that_names_it(server: DevServer) -> None:
    port = int(server.console.rstrip("/").rpartition(":")[2])
    async with AsyncExitStack() as stack:
        with pytest.raises(RequestError, match=str(port)) as caught:
            await serve_console(stack, server.address, "127.0.0.1", port)
    assert "--ui-port" in caught.value.remedy


def test_the_modules_of_the_first_view_are_preloaded() -> None:
    """A browser then asks for all of them at once, and not for each when another one imports it.

    Those of the other views are loaded when they are opened.
    """
    root = Path(ROOT, "millwheel/server/console/static")
    needed, waiting = set[str](), ["/app.js"]
    while waiting:
        path = waiting.pop()
        needed.add(path)
        found = re.findall(r'^import .* from "(/[^"]+)"', (root / path[1:]).read_text(), re.MULTILINE)
        waiting += [one for one in found if one not in needed]
    linked = re.findall('(?:href|src)="(/[^"]+[.]js)"', (root / "index.html").read_text())
    assert sorted(linked) == sorted(needed)


def test_no_file_of_the_page_names_another_host() -> None:
    """It works offline. Addresses stand only in licences, and in names of XML."""
    root = Path(ROOT, "millwheel/server/console/static")
    files = [path for path in root.rglob("*") if path.suffix in (".js", ".css", ".html", ".svg")]
    assert len(files) > 10
    texts = {path.name: path.read_text().replace("http://www.w3.org/", "") for path in files}
    assert [name for name, text in texts.items() if re.search("https?://", text)] == []
