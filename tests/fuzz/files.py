"""Configuration files, environments and flags: every mistake is reported with its place."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any, Final

from millwheel.config import ConfigError, load
from millwheel.config.declaring import declared
from millwheel.config.loading import environment_name
from millwheel.config.sections import Settings
from tests.fuzz.odd import ODD_WORDS, damaged
from tests.fuzz.surface import Surface, Unclear

_VALUES: Final = (
    "0", "-1", "1", "1.5", "1e400", "nan", "inf", "true", "false", '""', '"x"', "[]", "[1, [2]]", '["a", "a"]', "{}",
    "{a = {b = 1}}", "1979-05-27T07:32:00Z", "07:32:00", '"127.0.0.1:70000"', '"[::1]:1"', '"host:"', "9" * 400,
    '"\\u0000"', '"../.."', '"off"', '"etcd"', "0x_1", "'''", "0o17", '"' + "x" * 5_000 + '"',
    '"~nobody-of-this-name/x"',
)  # fmt: skip


class ConfigurationFiles(Surface):
    """A surface: each case is one configuration."""

    name = "settings"

    async def open(self) -> None:
        self._settings = list(declared(Settings))
        self._sections = sorted({one.section for one in self._settings})

    async def case(self, random: Random) -> str:
        """One file, with an environment and flags. Each is mostly right."""
        file = self.place / "millwheel.toml"
        file.write_bytes(self._content(random))
        environment = self._texts(random, environment_name) if random.random() < 0.3 else {}
        if random.random() < 0.1:
            environment[f"MILLWHEEL_{random.choice(self._sections).upper()}_{random.choice(ODD_WORDS)}"] = "1"
        flags = self._texts(random, lambda setting: setting.path) if random.random() < 0.3 else {}
        try:
            load(file, environment, flags)
        except ConfigError as error:
            if not error.problems or not all(one.where and one.message for one in error.problems):
                raise Unclear(f"no place, or no reason: {error}") from error
            return "REFUSED"
        return "OK"

    def _texts(self, random: Random, name: Callable[[Any], str]) -> dict[str, str]:
        return {
            name(setting): random.choice([*ODD_WORDS, *_VALUES])
            for setting in random.sample(self._settings, random.randrange(4))
        }

    def _content(self, random: Random) -> bytes:
        lines = []
        for section in random.sample(self._sections, random.randrange(1, len(self._sections))):
            lines.append(f"[{section}]" if random.random() < 0.97 else f"[[{section}]]")
            known = [one for one in self._settings if one.section == section]
            for setting in random.sample(known, random.randrange(len(known) + 1)):
                odd = ("nothing", "a.b", '"x y"', setting.name * 2)
                name = setting.name if random.random() < 0.95 else random.choice(odd)
                lines.append(f"{name} = {self._value(random, setting)}")
        whole = "\n".join(lines).encode()
        if random.random() < 0.01:
            whole += b"\nx = " + b"[" * 3_000
        return damaged(random, whole) if random.random() < 0.3 else whole

    def _value(self, random: Random, setting: Any) -> str:
        default = setting.default
        if random.random() < 0.6 and isinstance(default, bool | int | float | str):
            return json.dumps(default)
        return random.choice(_VALUES)
