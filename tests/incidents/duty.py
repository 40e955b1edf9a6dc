"""Someone on call: is paged, looks, acts, and sees that it is mended. All of it is timed, as docs/incidents.md says."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from examples.demo.showing import say
from tests.faults.running import BUILD
from tests.house.tree import ROOT
from tests.incidents.site import QUICK, Site, site
from tests.patience import patience, until

PAGE: Final = ROOT / "docs" / "incidents.md"
OF_THIS_MACHINE: Final = frozenset({"MillwheelProcessSlow"})
"""Alerts that are true where other work takes the CPU of the machine that runs the tests."""
_ONLY: Final = os.environ.get("MILLWHEEL_INCIDENT", "")


def is_chosen(name: str) -> bool:
    """Whether ``ONLY`` leaves this incident in: it is the name, or a part of it.

    Raises:
        ValueError: No incident has it in its name.
    """
    if not any(_ONLY in one for one in _sections()):
        raise ValueError(f"no incident is named like {_ONLY!r}: {', '.join(_sections())}")
    return _ONLY in name


def section_of(name: str) -> str:
    """The section of an incident in docs/incidents.md."""
    return _sections()[name]


def _sections() -> dict[str, str]:
    """The sections of docs/incidents.md. "A hot key" has the name ``hot-key``."""
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    titles = (one.partition("\n")[0].lower().removeprefix("a ") for one in sections)
    return {title.replace(" ", "-"): one for title, one in zip(titles, sections, strict=True)}


@dataclass
class Duty:
    """One incident, from its cause to its end. The steps are called in this order."""

    name: str
    site: Site
    alert: str
    also: frozenset[str]
    """Alerts that may fire, too: they lead to the same cause."""
    seen: dict[str, float] = field(default_factory=dict)
    """The alerts that fired since the cause, with the seconds until then."""
    times: dict[str, Any] = field(default_factory=dict)
    _since: float = 0.0

    def caused(self, what: str) -> None:
        """The cause is there now."""
        self._since = time.monotonic()
        self._say(f"caused: {what}")

    async def paged(self, within: float = patience(60)) -> None:
        """Wait until the alert fires. No other alert came before it that pages for another cause."""
        await until(lambda: self.alert in self.seen, within, every=0.2)
        self.times["alert"] = self.alert
        self.times["fired"] = round(self.seen[self.alert], 1)
        misleading = {name for name, since in self.seen.items() if since < self.seen[self.alert]} - self._allowed
        assert not misleading, f"{misleading} fired before {self.alert}"
        self._say(f"{self.alert} fires")

    async def finds(self, cause: str, *command: str) -> None:
        """A command shows the cause, by its name. The incident's section says to run it."""
        self._is_told(f"millwheel {command[0]} {command[1]}")

        async def shown() -> str:
            found = await self.site.cli(*command)
            return found.out + found.err

        text = await until(shown, patience(10), every=1.0, holds=lambda text: cause in text)
        self.times.setdefault("shown by", " ".join(command))
        self._say(f"`millwheel {' '.join(command)}` shows the cause:\n{_lines_with(cause, text)}")

    async def console_shows(self, cause: str, path: str, **query: str) -> None:
        """The console's API shows the cause, by its name."""
        await until(
            lambda: self.site.console(path, **query),
            patience(10),
            every=1.0,
            holds=lambda found: cause in json.dumps(found, ensure_ascii=False),
        )
        self._say(f"the console shows it, by {path}")

    async def acts(self, *command: str) -> None:
        """Take the one action, which is a command of ``millwheel``. The incident's section has it."""
        self._acted(f"millwheel {command[0]} {command[1]}")
        done = await self.site.cli(*command)
        assert done.code == 0, done.out + done.err
        self._say(f"`millwheel {' '.join(command)}`: {done.out.strip()}")

    async def acts_on_service(self, verb: str, name: str) -> None:
        """Take the one action, which is ``systemctl start``, ``stop`` or ``restart`` of a daemon."""
        self._acted(f"systemctl {verb} millwheel-{name.partition(' ')[0]}")
        services = self.site.cluster.daemons.services
        if verb in ("stop", "restart"):
            await asyncio.to_thread(services.stop_service, name)
        if verb in ("start", "restart"):
            await asyncio.to_thread(services.start_service, name)

    def _acted(self, action: str) -> None:
        """Note the time of the one action. Its words are in the incident's section."""
        self._is_told(action)
        self.times["action"] = action
        self.times["acted"] = round(time.monotonic() - self._since, 1)

    def acts_by(self, action: str) -> None:
        """Note the one action, which the test itself takes next, because it is none of MillWheel's."""
        self._acted(action)

    async def mended(self, within: float = patience(150)) -> None:
        """Wait until the cluster is healthy, and neither the alert nor another that pages fires.

        Then each order has counted exactly once.
        """

        async def healthy() -> bool:
            found = await self.site.cli("cluster", "health")
            if found.code != 0:
                self._say(f"not healthy yet:\n{_lines_with('- ', found.out)}")
            return found.code == 0

        acted = self.times["acted"]
        await until(healthy, within, every=1.0)
        self._say("the cluster is healthy")
        self.times["healthy after action"] = round(time.monotonic() - self._since - acted, 1)
        await until(lambda: asyncio.to_thread(self._is_over), within, every=1.0)
        self._say("the alert has ended")
        self.times["alert ended after action"] = round(time.monotonic() - self._since - acted, 1)
        await self.site.close_shop()
        assert self.site.ledger.problems(self.site.valid) == []
        unexpected = self.seen.keys() - {self.alert} - self._allowed
        assert not unexpected, f"{unexpected} fired, too"

    @property
    def _allowed(self) -> frozenset[str]:
        return self.also | OF_THIS_MACHINE

    def _is_over(self) -> bool:
        firing = self.site.prometheus.firing_alerts()
        return not any(one["alertname"] == self.alert or one["severity"] == "page" for one in firing)

    async def watch(self) -> None:
        """Look for firing alerts each second, for ever."""
        while True:
            for name in await asyncio.to_thread(self.site.prometheus.firing):
                if self._since and name not in self.seen:
                    self.seen[name] = time.monotonic() - self._since
                    self._say(f"alert: {name}")
            await asyncio.sleep(1.0)

    def report(self) -> None:
        """Write the times to build/incidents.jsonl."""
        row = {"incident": self.name, **self.times, "alerts": self.seen, "quick": QUICK}
        say(json.dumps(row))
        with (BUILD / "incidents.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    def _is_told(self, text: str) -> None:
        assert text in section_of(self.name), f"the section of {self.name} in {PAGE.name} does not say `{text}`"

    def _say(self, text: str) -> None:
        since = time.monotonic() - self._since if self._since else 0.0
        say(f"{self.name}, {since:.1f} s: {text}")


def _lines_with(cause: str, text: str) -> str:
    return "\n".join(line for line in text.splitlines() if cause in line)


@asynccontextmanager
async def on_duty(
    name: str, place: Path, alert: str, *, also: frozenset[str] = frozenset(), **options: Any
) -> AsyncIterator[Duty]:
    """A site of its own for one incident, and someone on call. ``options``: those of the site."""
    async with site(place / name, **options) as made:
        duty = Duty(name, made, alert, also)
        watching = asyncio.create_task(duty.watch())
        try:
            yield duty
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            duty.report()
