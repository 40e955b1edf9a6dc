"""A headless Chromium, by its DevTools protocol over aiohttp's WebSocket client."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from aiohttp import ClientSession, ClientWebSocketResponse, WSMsgType

from tests.patience import patience, until

COMMANDS: Final = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_LISTENING: Final = re.compile(r"DevTools listening on ws://([^/]+)/")


def found_browser() -> str:
    """The path of an installed browser, or an empty text."""
    return next((path for name in COMMANDS if (path := shutil.which(name))), "")


class Page:
    """One page of the browser. ``errors`` has all that its console and its network complained of."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self.errors: list[str] = []
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            if message.type is not WSMsgType.TEXT:
                continue
            said = json.loads(message.data)
            if "id" in said:
                self._waiting.pop(said["id"]).set_result(said)
            elif said["method"] == "Runtime.exceptionThrown":
                details = said["params"]["exceptionDetails"]
                self.errors.append(details.get("exception", {}).get("description", details["text"]))
            elif said["method"] == "Log.entryAdded" and said["params"]["entry"]["level"] == "error":
                self.errors.append(f"{said['params']['entry']['text']} {said['params']['entry'].get('url', '')}")

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command, and return its result."""
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_str(json.dumps({"id": number, "method": method, "params": params}))
        said = await asyncio.wait_for(answer, patience(20))
        assert "error" not in said, f"{method}: {said['error']}"
        return dict(said["result"])

    async def open(self, url: str, *, dark: bool = False, width: int = 1360, height: int = 860) -> None:
        """Show a page of one size, in the light or the dark scheme."""
        for domain in ("Page", "Runtime", "Log"):
            await self.ask(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.ask("Emulation.setEmulatedMedia", features=[scheme])
        await self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        await self.ask("Page.navigate", url=url)

    async def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        result = await self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    async def until(self, script: str, why: str) -> None:
        """Wait until an expression is true. AssertionError with the page's text if it takes too long."""
        try:
            await until(lambda: self.run(f"Boolean({script})"), patience(30), every=0.05)
        except TimeoutError:
            text = await self.run("document.body.innerText")
            raise AssertionError(f"{why}; the page says:\n{text}\n{self.errors}") from None

    async def text(self) -> str:
        """What the page says."""
        return str(await self.run("document.body.innerText"))

    async def press(self, key: str) -> None:
        """Press a key."""
        typed = {"text": "\r" if key == "Enter" else key} if key == "Enter" or len(key) == 1 else {}
        code = {"Tab": 9, "Enter": 13, "Escape": 27}.get(key, ord(key[0]))
        await self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **typed)
        await self.ask("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    async def picture(self, path: Path) -> None:
        """Write what the page looks like to a PNG file."""
        data = base64.b64decode((await self.ask("Page.captureScreenshot", format="png"))["data"])

        def write() -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

        await asyncio.to_thread(write)

    async def close(self) -> None:
        """Stop to listen to the page."""
        await self._socket.close()
        await self._reading


@asynccontextmanager
async def browsing(home: Path) -> AsyncIterator[Page]:
    """A page of a new browser, whose profile is in ``home``."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", f"--user-data-dir={home}"]
    process = await asyncio.create_subprocess_exec(
        found_browser(),
        *options,
        "about:blank",
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stderr is not None
    draining: asyncio.Task[bytes] | None = None
    try:
        async with asyncio.timeout(patience(30)):
            while not (listening := _LISTENING.search((await process.stderr.readline()).decode())):
                assert process.returncode is None, "the browser has ended"
        draining = asyncio.create_task(process.stderr.read())
        async with ClientSession() as session:
            async with session.get(f"http://{listening[1]}/json/list") as response:
                target = next(one for one in await response.json() if one["type"] == "page")
            async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Page(socket)
                yield page
                await page.close()
    finally:
        # The command may be a script that starts the browser, and the browser starts more processes.
        os.killpg(process.pid, signal.SIGKILL)
        if draining is not None:
            await draining
        await process.wait()
