"""The instructions of deploy/container/Dockerfile."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.house.tree import ROOT

FILE = ROOT / "deploy" / "container" / "Dockerfile"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its word, and the rest without continuations."""

    word: str
    rest: str

    @property
    def items(self) -> list[str]:
        """The items of the exec form."""
        return list(json.loads(self.rest))


@cache
def instructions() -> tuple[Instruction, ...]:
    """All instructions, in their order."""
    lines = [line for line in FILE.read_text().splitlines() if line and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return tuple(Instruction(*line.split(" ", 1)) for line in joined.splitlines())


def copied() -> list[str]:
    """What the image takes from the checkout."""
    lines = [one.rest.split() for one in instructions() if one.word == "COPY" and "--from=" not in one.rest]
    return [word for words in lines for word in words[:-1] if not word.startswith("--")]


def last(word: str) -> Instruction:
    """The last instruction of this word."""
    return [one for one in instructions() if one.word == word][-1]


def entry_point() -> tuple[str, ...]:
    """What every container's command begins with."""
    return tuple(last("ENTRYPOINT").items)


def environment() -> dict[str, str]:
    """The variables that the image sets."""
    return dict(item.split("=", 1) for item in shlex.split(last("ENV").rest))


def health_check() -> tuple[str, ...]:
    """The command of the image's health check."""
    return tuple(json.loads(last("HEALTHCHECK").rest.partition("CMD ")[2]))


def user() -> int:
    """The number of the image's user."""
    return int(last("USER").rest.partition(":")[0])


def script(command: str) -> Path:
    """The file of this checkout that the image has as a command."""
    (copied,) = [one.rest for one in instructions() if one.word == "COPY" and one.rest.endswith(f"/bin/{command}")]
    return ROOT / copied.split()[-2]
