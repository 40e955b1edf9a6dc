"""The console's page in a real browser, against a real server. ``make test-console`` installs one and runs these."""

from __future__ import annotations

import base64
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from deploy.local.child import free_ports
from millwheel.model.keys import KeyInterval
from millwheel.model.time import format_duration, seconds
from millwheel.server.console.serving import serve_console
from millwheel.server.dev_server import DevServer, DevSettings, running
from tests.console.browser import Page
from tests.console.conftest import Inject, Start
from tests.console.looking import CONTRAST, picture, says
from tests.console.shop import REFUSED
from tests.daemons.together import together

pytestmark = pytest.mark.long


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("topology", ["shop", "large"])
async def test_every_view_shows_what_runs(
    server: DevServer, start: Start, page: Page, topology: str, dark: bool
) -> None:
    await start(topology)
    last = "days" if topology == "shop" else "step-49"
    views = {
        "#/topologies": topology,
        f"#/topology/{topology}": last,
        f"#/topology/{topology}/{last}": "by records: it has no tumbling windows",
        "#/time": last,
        f"#/time/{topology}/{last}": "Held by",
        f"#/keys/{topology}/{last}": "2 intervals",
        f"#/key/{topology}/{last}": "No key has a state",
        f"#/key/{topology}/{last}/ann": "Interval",
        "#/streams": f"{topology}/orders",
        f"#/streams/{topology}/orders": "Its records are not kept",
        "#/injectors": "No process has injected yet",
        "#/cluster": server.address,
        "#/events": f"topology {topology} is submitted",
    }
    for view, text in views.items():
        await page.open("about:blank")
        await page.open(server.console + view, dark=dark)
        await page.until(says(text), f"{view} does not show {text!r}")
        assert await page.run(CONTRAST) == [], f"too little contrast in {view}"
        await picture(page, f"{topology}-{view[2:].replace('/', '-')}-{'dark' if dark else 'light'}")


async def test_a_failing_hook_is_red_where_it_happens(
    server: DevServer, start: Start, inject: Inject, page: Page
) -> None:
    await start("shop")
    await inject("ann", REFUSED)
    await page.open(f"{server.console}#/topology/shop")
    await page.until("document.querySelectorAll('.node.failing').length === 1", "no node is red")
    assert await page.run("document.querySelector('.node.failing b').innerText") == "alerts"
    box = "document.querySelector('.problems')?.innerText ?? ''"
    await page.until(f"({box}).includes('no alert for eve')", "the topology's own page does not name it")
    assert "runbook: MillwheelHookFailing" in await page.run(box)
    counts = "[...document.querySelectorAll('.rail .count.bad')].map((one) => one.innerText)"
    assert await page.run(counts) == ["1 problem"], "one problem counts once"
    await page.open(f"{server.console}#/time/shop/days")
    await page.until(says("no alert for eve"), "the chain does not end at the error")
    await picture(page, "failing-time")
    await page.open(f"{server.console}#/topologies")
    problem = "document.querySelector('.problems li')"
    await page.until(f"{problem}?.innerText.includes('no alert for eve')", "the first page does not show it")
    assert "runbook: MillwheelHookFailing" in await page.run(f"{problem}.innerText")
    await page.run(f"{problem}.querySelector('a').click()")
    await page.until("document.querySelector('.inspector h2')?.innerText === 'alerts'", "the link leads elsewhere")


async def test_edges_have_rates_latencies_and_watermarks(
    server: DevServer, start: Start, inject: Inject, page: Page
) -> None:
    await start("shop")
    await inject("ann")
    # Its rates are of the last seconds, and the page has to look within them.
    await page.open(f"{server.console}#/topology/shop")
    await page.until("document.querySelectorAll('a.label').length === 5", "not each edge has a label")
    label = "[...document.querySelectorAll('a.label')].find((one) => one.innerText.startsWith('accounts'))"
    await inject(*["ann"] * 50, process="q")
    await page.until(f"/[1-9].*\\/s · .*s\\n/.test({label}.innerText)", "no rate or no latency")
    await page.until(f"{label}.innerText.includes('lag')", "no lag")
    await page.run(f"{label}.focus()")
    await page.until("document.querySelector('.edge-text').innerText.includes('low watermark 2')", "no watermark")
    assert await page.run(CONTRAST) == []
    await page.run("document.querySelector('details summary').click()")
    await page.until("document.querySelectorAll('details tbody tr').length === 5", "no table")
    first = await page.run("document.querySelector('details tbody tr').innerText")
    assert first.startswith("injectors\torders\taccounts\t")
    await picture(page, "edges")


async def test_a_large_graph_shows_an_edge_under_the_pointer(server: DevServer, start: Start, page: Page) -> None:
    await start("large")
    await page.open(f"{server.console}#/topology/large")
    await page.until("document.querySelectorAll('.reach').length === 50", "no edges")
    assert await page.run("document.querySelectorAll('a.label').length") == 0, "labels would overlap"
    await page.run("document.querySelector('.edges g').dispatchEvent(new PointerEvent('pointerenter'))")
    await page.until("document.querySelector('.edge-text').innerText.includes('to step-0')", "no figures of the edge")
    await page.until("document.querySelectorAll('.edge.pointed').length === 1", "it is not marked")
    await page.run("document.querySelector('details summary').click()")
    await page.until("document.querySelectorAll('details tbody tr').length === 50", "no table")


async def test_figures_change_and_the_page_says_if_it_is_cut_off(tmp_path: Path, page: Page) -> None:
    port = free_ports(1)[0]
    settings = DevSettings(db=tmp_path / "db", port=free_ports(1)[0], ui_port=port)
    async with running(settings) as server:
        await page.open(f"{server.console}#/time")
        await page.until(says("No topology runs"), "nothing is shown")
        await page.run("window.before = document.querySelector('.head .aside').innerText")
        await page.until("document.querySelector('.head .aside').innerText !== window.before", "the clock stands")
    await page.until("document.querySelector('.banner')?.innerText.includes('No answer since')", "no word of the end")
    await picture(page, "cut-off")
    async with running(settings):
        await page.until("!document.querySelector('.banner')", "the page does not go on")
    page.errors.clear()  # the browser notes each request that failed


async def changing_overviews(page: Page, change: str) -> None:
    """Make each overview go through a JavaScript function of its text before the page has it."""
    script = f"""
      const asked = window.fetch;
      window.fetch = async (url, options) => {{
        const response = await asked(url, options);
        if (!String(url).includes("GetOverview")) return response;
        return new Response(({change})(await response.text()), {{ status: response.status }});
      }};"""
    await page.ask("Page.enable")
    await page.ask("Page.addScriptToEvaluateOnNewDocument", source=script)


async def test_without_the_health_of_the_cluster_the_rest_is_shown(server: DevServer, start: Start, page: Page) -> None:
    """As for a person whose role is for some topologies."""
    await start("shop")
    await changing_overviews(page, "(text) => JSON.stringify({...JSON.parse(text), health: undefined})")
    await page.open(server.console)
    await page.until(says("shop"), "nothing is shown")
    await page.run("location.hash = '#/cluster'")
    await page.until(says("for the whole cluster"), "no word of the role")
    await page.run("location.hash = '#/keys/shop/alerts'")
    await page.until("document.querySelectorAll('.cell[role=option]').length === 2", "no strip")


async def test_an_answer_that_is_cut_is_no_answer(server: DevServer, page: Page) -> None:
    await changing_overviews(page, "(text) => text.slice(0, 100)")
    await page.open(server.console)
    await page.until("document.querySelector('.banner')?.innerText.includes('does not answer')", "no word of it")


async def test_the_page_goes_on_at_another_master(tmp_path: Path, page: Page) -> None:
    ports = free_ports(2)
    consoles = [f"http://127.0.0.1:{port}/" for port in ports]
    async with together(tmp_path, masters=[{"master.ui_port": str(port)} for port in ports]) as cluster:
        await page.open(f"{consoles[0]}#/cluster")
        await page.until("document.querySelectorAll('td a[href^=http]').length === 2", "not both consoles are named")
        await page.until(says("leads"), "no master leads")
        row = "[...document.querySelectorAll('tr')].find((row) => row.innerText.includes('leads'))"
        leader = consoles.index(await page.run(f"{row}.querySelector('a').href"))
        await page.open("about:blank")
        await page.open(f"{consoles[leader]}#/cluster")
        await page.until(says("leads"), "nothing is shown")
        await cluster.masters[leader].stop()
        await page.until("document.querySelector('.banner a')", "no link to the other master")
        assert "No answer since" in await page.run("document.querySelector('.banner').innerText")
        assert await page.run(CONTRAST) == []
        await picture(page, "leader-stopped")
        await page.run("document.querySelector('.banner a').click()")
        there = f"location.href === '{consoles[1 - leader]}#/cluster' && !document.querySelector('.banner')"
        await page.until(there, "it does not go on")
        await page.until(says("leads"), "the other master does not lead")
        await page.run("location.hash = '#/events'")
        elected = f"the master at {cluster.masters[1 - leader].address} leads"
        await page.until(says(elected), "the election is no event")
        await picture(page, "after-failover")
    page.errors.clear()  # the browser notes each request that failed


async def test_the_page_is_used_by_keyboard(server: DevServer, start: Start, page: Page) -> None:
    await start("shop")
    await page.open(server.console)
    await page.until(says("shop"), "nothing is shown")
    await page.press("3")
    await page.until("document.querySelector('h1').innerText === 'Keys'", "key 3")
    await page.press("2")
    await page.until("location.hash === '#/time' && document.querySelector('h1').innerText === 'Time'", "key 2")
    await page.press("1")
    await page.until(says("computations"), "key 1")
    focused = "document.activeElement.getAttribute('href')"
    for _ in range(12):
        await page.press("Tab")
        if await page.run(focused) == "#/topology/shop":
            break
    assert await page.run(focused) == "#/topology/shop"
    await page.press("Enter")
    await page.until("document.querySelectorAll('.node').length > 3", "Enter opens no graph")
    for _ in range(30):
        await page.press("Tab")
        if await page.run(focused) == "#/topology/shop/alerts":
            break
    assert await page.run(focused) == "#/topology/shop/alerts"
    await page.press("Enter")
    await page.until("document.querySelector('.inspector')?.innerText.includes('alerts')", "nothing is selected")
    assert await page.run(focused) == "#/topology/shop/alerts", "the focus stays while figures change"
    await page.press("Escape")
    await page.until("!document.querySelector('.inspector')", "Escape closes nothing")


async def test_escape_closes_what_has_just_been_opened(server: DevServer, start: Start, page: Page) -> None:
    """Also if it comes before the first frame that shows it."""
    await start("shop")
    await page.open(f"{server.console}#/keys/shop/days")
    await page.until("document.querySelectorAll('.cell[role=option]').length === 2", "no strip")
    interval = await page.run("document.querySelector('tbody a').getAttribute('href')")
    for view, selected in ("#/topology/shop", "#/topology/shop/alerts"), ("#/keys/shop/days", interval):
        await page.run(f"location.hash = '{view}'")
        await page.until(f"document.querySelector('main a[href=\"{selected}\"]')", f"{view} is not shown")
        escaped = await page.run(f"""new Promise((ends) => {{
          new MutationObserver((_, watcher) => {{
            if (!document.querySelector('.inspector')) return;
            watcher.disconnect();
            document.body.dispatchEvent(new KeyboardEvent('keydown', {{ key: 'Escape', bubbles: true }}));
            ends(location.hash);
          }}).observe(document.body, {{ childList: true, subtree: true }});
          location.hash = '{selected}';
        }})""")
        assert escaped == view, "Escape has no effect"
        await page.until("!document.querySelector('.inspector')", "it is still shown")


async def test_an_interval_is_split_after_its_plan_is_confirmed(
    server: DevServer, start: Start, inject: Inject, page: Page
) -> None:
    await start("shop")
    await inject("ann", "zoe", REFUSED)
    await page.open(f"{server.console}#/keys/shop/alerts")
    await page.until("document.querySelectorAll('.cell.trouble[role=option]').length === 1", "no cell needs attention")
    await page.run("document.querySelector('.strip').focus()")
    await page.press("End")
    await page.until("document.querySelector('.inspector dl')?.innerText.includes('commits')", "nothing is selected")
    await page.until(says("no alert for eve"), "the failing key is not shown")
    await page.run("document.querySelector('.changes button').focus()")
    await page.press("Enter")
    await page.until("document.querySelector('input[name=at]')", "no form")
    await page.run("document.querySelector('input[name=at]').focus()")
    await page.press("m")
    await page.press("Enter")
    await page.until("document.querySelector('.plan')?.innerText.includes('Both halves stay on dev.')", "no plan")
    assert await page.run("document.querySelectorAll('.cell[role=option]').length") == 2
    assert await page.run(CONTRAST) == []
    await picture(page, "keys-plan")
    await page.run("document.querySelector('.plan button.primary').click()")
    await page.until("document.querySelectorAll('.cell[role=option]').length === 3", "nothing was split")
    await page.until("document.querySelector('.inspector h2').innerText.endsWith(\"'m')\")", "another one is selected")


async def test_a_key_is_found_with_its_state_and_its_error(
    server: DevServer, start: Start, inject: Inject, page: Page
) -> None:
    await start("shop")
    await inject("ann", "b/ö 1", REFUSED)
    await page.open(f"{server.console}#/keys/shop/alerts")
    await page.until("document.querySelector('input[name=key]')", "no search")
    await page.run("document.querySelector('input[name=key]').focus()")
    for letter in REFUSED:
        await page.press(letter)
    await page.press("Enter")
    await page.until(says("no alert for eve"), "the error is not shown")
    assert await page.run(CONTRAST) == []
    await picture(page, "key-failing")
    await page.open(f"{server.console}#/key/shop/days")
    await page.until(says("b/ö 1"), "the key is not listed")
    await picture(page, "key-list")
    await page.run("[...document.querySelectorAll('td a')].find((one) => one.innerText === 'b/ö 1').click()")
    await page.until("document.querySelector('pre.state')?.innerText === '5'", "its state is not shown")
    await page.until(says("watermark"), "its timer is not shown")
    await picture(page, "key-state")


async def test_records_of_a_stream_come_as_they_are_made(
    server: DevServer, start: Start, inject: Inject, page: Page
) -> None:
    await start("shop")
    await inject("ann")
    await page.open(f"{server.console}#/streams/shop/alerts")
    await page.until(says('"customer":"ann"'), "the record is not shown")
    await inject("bob", process="q")
    await page.until(says('"customer":"bob"'), "the next record is not shown")
    assert await page.run("document.querySelectorAll('td.wide').length") == 2
    assert await page.run(CONTRAST) == []
    await page.until(says("records kept"), "no figures of the log")
    await picture(page, "stream-tail")
    await page.run("document.querySelector('.tools button').click()")
    await page.until("document.querySelector('.tools button').innerText === 'Go on'", "it is not paused")
    await inject("cyd", process="r")
    await page.run("window.seen = document.querySelector('.rail .foot').innerText")
    await page.until("document.querySelector('.rail .foot').innerText !== window.seen", "the page stands")
    assert await page.run("document.querySelectorAll('td.wide').length") == 2
    await page.run("document.querySelector('.tools button').click()")
    await page.until(says('"customer":"cyd"'), "it does not go on")


async def test_a_read_only_page_offers_no_changes(server: DevServer, start: Start, page: Page) -> None:
    await start("shop")
    async with AsyncExitStack() as stack:
        url = await serve_console(stack, server.address, "127.0.0.1", 0)
        await page.open(f"{url}#/keys/shop/alerts")
        await page.until("document.querySelectorAll('.cell[role=option]').length === 2", "no strip")
        await page.run("document.querySelector('.cell[role=option]').click()")
        await page.until(says("This console is read-only"), "no word of it")
        assert await page.run("document.querySelector('.changes') === null")


async def test_the_first_view_waits_for_its_own_files_alone(server: DevServer, start: Start, page: Page) -> None:
    await start("shop")
    await page.open(server.console)
    scripts = "performance.getEntriesByType('resource').filter((one) => one.name.endsWith('.js'))"
    shown = "performance.getEntriesByName('data-shown')[0]"
    await page.until(f"{shown}", "nothing is shown")
    before = f"{scripts}.filter((one) => one.startTime < {shown}.startTime).map((one) => one.name.split('/').at(-1))"
    assert len(await page.run(before)) <= 7
    await page.until(f"{scripts}.some((one) => one.name.endsWith('graph.js'))", "the others are never loaded")
    await page.open("about:blank")
    await page.open(f"{server.console}#/events")
    await page.until(says("topology shop is submitted"), "another view is not loaded")


async def test_figures_have_the_form_of_the_command_line(server: DevServer, page: Page) -> None:
    await page.open(server.console)
    spans = [0.0004, 0.0021, 0.5, 1.24, 9.99, 75, 3_600, 15_120, 95_299_200]
    shown = await page.run(f'import("/format.js").then((it) => {spans}.map(it.duration))')
    assert shown == [format_duration(seconds(one)) for one in spans]
    keys = ["", "o'", 'a"', "ä"]
    encoded = [base64.b64encode(one.encode()).decode() for one in keys]
    bounds = await page.run(f'import("/keys.js").then((it) => {encoded}.map((start) => it.rangeText({{ start }})))')
    assert bounds == [str(KeyInterval(one.encode(), None)) for one in keys]


async def test_injectors_furthest_behind_come_first(
    server: DevServer, start: Start, inject: Inject, page: Page
) -> None:
    await start("shop")
    await inject(process="none-yet", to=None)
    await inject(process="ahead", to=20)
    await inject(process="behind", to=10)
    await page.open(f"{server.console}#/injectors")
    order = "[...document.querySelectorAll('td b')].map((one) => one.innerText).join()"
    await page.until(f"{order} === 'none-yet,behind,ahead'", "another order")
    await page.open(f"{server.console}#/time/shop/source%3Aorders")
    chain = "[...document.querySelectorAll('.chain b')].map((one) => one.innerText).join()"
    await page.until(f"{chain} === 'none-yet,behind,ahead'", "a source is not explained")
    await picture(page, "time-source")


async def test_markup_in_names_is_text(server: DevServer, start: Start, inject: Inject, page: Page) -> None:
    await start("shop")
    await inject("ann", process="<img src=x onerror=alert(1)>")
    await page.open(f"{server.console}#/injectors")
    await page.until(says("<img src=x"), "the process is not shown")
    assert await page.run("document.querySelectorAll('main img').length") == 0
