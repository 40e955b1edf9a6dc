"""A service beyond the network, as its clients see it: it may be slow or unavailable, and outcomes may stay unknown.

The service executes a request in one step of the world. The network is before and after that step. A request may arrive
late, even after its sender has given up or died, or after a partition has healed. Its outcome may never be reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

from simulation.network import Network
from simulation.process import PROCESS, Process, ProcessStep

__all__ = ["Remote", "Weather"]

Answer = TypeVar("Answer")


class Weather:
    """The current behaviour of a service. Probabilities from 0 to 1, times in seconds."""

    def __init__(self) -> None:
        self.away = False
        """Whether it refuses all requests."""
        self.slow = 0.0
        """The largest delay that is added to a request, in seconds."""
        self.lost = 0.0
        """The probability that a request's outcome is not reported."""
        self.latest = 20.0
        """The longest time in seconds after which a request with an unknown outcome may still execute."""


class Remote:
    """A service on host ``name``. ``unavailable`` makes the exception that a caller gets for an unknown outcome."""

    def __init__(
        self, network: Network, name: str, chance: Random, unavailable: Callable[[str], Exception], timeout: float
    ) -> None:
        self.name = name
        self.weather = Weather()
        self.held: dict[str, list[Callable[[], object]]] = {}
        """By process whose requests are held back: these requests."""
        self.cut_off: list[Callable[[], object]] = []
        """Requests that a partition holds back.

        They arrive some time after it has healed.
        """
        self._network = network
        self.chance = chance
        self._unavailable = unavailable
        self._timeout = timeout
        network.healing.append(self._healed)

    async def ask(self, work: Callable[[], Answer]) -> Answer:
        """Run ``work`` at the service, and return its outcome; raises the exception for an unknown outcome."""
        answer = self._network.loop.create_future()
        timer = self.post(answer, work)
        try:
            result: Answer = await answer
            return result
        finally:
            timer.cancel()

    def post(self, answer: Any, work: Callable[[], object]) -> ProcessStep:
        """Send ``work`` to the service, and set the future ``answer`` to its outcome.

        Returns:
            The timer that sets ``answer`` to an unknown outcome at the timeout.
        """
        process = PROCESS.get()
        assert process is not None, "the world asks itself"
        loop, weather = self._network.loop, self.weather
        timer = loop.call_later(self._timeout, self._give_up, answer)
        delay = self._network.delay(process.name, self.name) + weather.slow * self.chance.random()
        answered, cut_off = True, self._network.is_cut(process.name, self.name)
        if cut_off:
            delay, answered, cut_off = -1.0, False, self.chance.random() < 0.5
        elif weather.lost and self.chance.random() < weather.lost:
            answered = False
            # The request is executed at once, later, or never.
            fate = self.chance.random()
            delay = delay if fate < 0.4 else -1.0 if fate > 0.75 else self.chance.random() * weather.latest
        arguments = (process, work, answer if answered else None)
        if process.name in self.held:
            self.held[process.name].append(lambda: self._serve(*arguments))
        elif cut_off:
            self.cut_off.append(lambda: self._serve(*arguments))
        elif delay >= 0:
            loop.call_later(delay, self._serve, *arguments, context=self._network.context)
        return timer

    def _give_up(self, answer: Any) -> None:
        _settle(answer, None, self._unavailable("no answer in time"))

    def hold(self, name: str) -> None:
        """From now on, hold back the requests of process ``name`` until they are released, even if the process dies."""
        self.held[name] = []

    def release(self, name: str) -> None:
        """Let the held requests arrive now."""
        for serve in self.held.pop(name):
            self._network.loop.call_soon(serve, context=self._network.context)

    def _healed(self) -> None:
        """Send on the requests that partitions held back, some of them with a delay."""
        asked, self.cut_off = self.cut_off, []
        for serve in asked:
            delay = self.chance.choice((0.0, 0.1, 3.0)) * self.chance.random()
            self._network.loop.call_later(delay, serve, context=self._network.context)

    def _serve(self, process: Process, work: Callable[[], Any], answer: Any) -> None:
        result, error = None, None
        if self.weather.away:
            error = self._unavailable("it is away")
        else:
            try:
                result = work()
            except Exception as raised:
                error = raised
        if asyncio.iscoroutine(result):
            task = self._network.loop.create_task(result, context=self._network.context.copy())
            task.add_done_callback(lambda done: self._reply(process, answer, *_outcome(done)))
        else:
            self._reply(process, answer, result, error)

    def _reply(self, process: Process, answer: Any, result: Any, error: BaseException | None) -> None:
        if answer is None or self._network.is_cut(self.name, process.name):
            return
        delay = self._network.delay(self.name, process.name)
        self._network.loop.call_later(
            delay, process.enter, _settle, answer, result, error, context=self._network.context
        )


def _outcome(done: asyncio.Task[Any]) -> tuple[Any, BaseException | None]:
    error = done.exception()
    return (None, error) if error is not None else (done.result(), None)


def _settle(answer: Any, result: Any, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)
