"""The unit files of deploy/systemd, read as systemd reads them."""

from __future__ import annotations

import shlex
import subprocess
from collections import defaultdict
from functools import cache

from tests.house.tree import ROOT

FOLDER = ROOT / "deploy" / "systemd"
ROLES = ("master", "authority", "worker")


@cache
def service(role: str) -> dict[str, list[str]]:
    """The directives of the section [Service], each with its values in their order. An empty one resets."""
    found: dict[str, list[str]] = defaultdict(list)
    section = ""
    for line in (FOLDER / f"millwheel-{role}.service").read_text().splitlines():
        if line.startswith("["):
            section = line
        elif section == "[Service]" and line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found[name].append(value)
    return dict(found)


def environment(role: str) -> dict[str, str]:
    """The variables that a unit sets."""
    return dict(item.split("=", 1) for value in service(role)["Environment"] for item in shlex.split(value))


@cache
def system_calls(role: str) -> frozenset[str]:
    """The names of the system calls that a unit allows."""
    # These are always allowed where a list of allowed calls is given (systemd.exec(5)).
    allowed = _named("@default") | {"execve", "exit", "exit_group", "getrlimit", "rt_sigreturn", "sigreturn"}
    for value in service(role)["SystemCallFilter"]:
        names = {name for word in value.removeprefix("~").split() for name in _named(word)}
        allowed = allowed - names if value.startswith("~") else allowed | names
    return frozenset(allowed)


def _named(word: str) -> set[str]:
    """The calls of a set, with those of the sets within it. A name is itself."""
    if not word.startswith("@"):
        return {word}
    shown = subprocess.run(["systemd-analyze", "syscall-filter", "--no-pager", word], capture_output=True, text=True)
    lines = [line.strip() for line in shown.stdout.splitlines()[1:]]
    return {name for line in lines if line and not line.startswith("#") for name in _named(line)}
