"""Configuration files, environments and flags: every mistake is reported with its place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

from millwheel.config import ConfigError, load
from millwheel.config.declaring import declared
from millwheel.config.loading import environment_name
from millwheel.config.sections import Settings
from tests.fuzz.cases import LIMIT, Unclear, run
from tests.fuzz.odd import ODD_WORDS, damaged

_SETTINGS: Final = list(declared(Settings))
_SECTIONS: Final = sorted({one.section for one in _SETTINGS})
_VALUES: Final = (
    "0", "-1", "1", "1.5", "1e400", "nan", "inf", "true", "false", '""', '"x"', "[]", "[1, [2]]", '["a", "a"]', "{}",
    "{a = {b = 1}}", "1979-05-27T07:32:00Z", "07:32:00", '"127.0.0.1:70000"', '"[::1]:1"', '"host:"', "9" * 400,
    '"\\u0000"', '"../.."', '"off"', '"etcd"', "0x_1", "'''", "0o17", '"' + "x" * 5_000 + '"',
    '"~nobody-of-this-name/x"',
)  # fmt: skip


@LIMIT
async def test_every_mistake_in_settings_is_reported_with_its_place(tmp_path: Path) -> None:
    """Each case is one file, with an environment and flags. Each is mostly right."""
    file = tmp_path / "millwheel.toml"

    async def case(random: Random) -> str:
        file.write_bytes(_content(random))
        environment = _texts(random, environment_name) if random.random() < 0.3 else {}
        if random.random() < 0.1:
            environment[f"MILLWHEEL_{random.choice(_SECTIONS).upper()}_{random.choice(ODD_WORDS)}"] = "1"
        flags = _texts(random, lambda setting: setting.path) if random.random() < 0.3 else {}
        try:
            load(file, environment, flags)
        except ConfigError as error:
            if not error.problems or not all(one.where and one.message for one in error.problems):
                raise Unclear(f"no place, or no reason: {error}") from error
            return "REFUSED"
        return "OK"

    await run("settings", case, few=100, percent=6)


def _texts(random: Random, name: Callable[[Any], str]) -> dict[str, str]:
    return {
        name(setting): random.choice([*ODD_WORDS, *_VALUES])
        for setting in random.sample(_SETTINGS, random.randrange(4))
    }


def _content(random: Random) -> bytes:
    lines = []
    for section in random.sample(_SECTIONS, random.randrange(1, 5)):
        lines.append(f"[{section}]" if random.random() < 0.97 else f"[[{section}]]")
        known = [one for one in _SETTINGS if one.section == section]
        for setting in random.sample(known, random.randrange(min(len(known), 4) + 1)):
            odd = ("nothing", "a.b", '"x y"', setting.name * 2)
            name = setting.name if random.random() < 0.95 else random.choice(odd)
            lines.append(f"{name} = {_value(random, setting.default)}")
    whole = "\n".join(lines).encode()
    if random.random() < 0.01:
        whole += b"\nx = " + b"[" * 3_000
    return damaged(random, whole) if random.random() < 0.3 else whole


def _value(random: Random, default: object) -> str:
    if random.random() < 0.6 and isinstance(default, bool | int | float | str):
        return json.dumps(default)
    return random.choice(_VALUES)
