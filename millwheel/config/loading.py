"""Combines the layers of settings: defaults, file, environment, flags. Reports all problems at once."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from millwheel.config.declaring import Setting, declared
from millwheel.config.errors import ConfigError
from millwheel.config.rules import impossible
from millwheel.config.sections import Settings
from millwheel.errors import Problem, did_you_mean

__all__ = ["DEFAULT_FILE", "FILE_VARIABLE", "Configuration", "environment_name", "flag_name", "line_of", "load"]

FILE_VARIABLE: Final = "MILLWHEEL_CONFIG"
"""The variable that names the file if no flag does."""
DEFAULT_FILE: Final = Path("/etc/millwheel/millwheel.toml")
"""The file that is read if it exists and no other file is named."""

_PREFIX: Final = "MILLWHEEL_"
_DEFAULT: Final = "default"

_HEADER: Final = re.compile(r"\s*\[+\s*([^\]]+?)\s*\]+")
_KEY: Final = re.compile(r"""\s*([\w."'-]+(?:\s*\.\s*[\w"'-]+)*)\s*=""")


@dataclass(frozen=True, slots=True)
class Configuration:
    """The resulting settings. ``sources`` maps each path (``store.keyspace``) to the value's source, in words."""

    settings: Settings
    sources: Mapping[str, str]
    file: Path | None

    def value(self, setting: Setting) -> Any:
        """Return the value of a setting."""
        return getattr(getattr(self.settings, setting.section), setting.name)


def environment_name(setting: Setting) -> str:
    """Return the environment variable of a setting: ``MILLWHEEL_STORE_CONTACT_POINTS`` for store.contact_points."""
    return f"{_PREFIX}{setting.section}_{setting.name}".upper()


def flag_name(setting: Setting) -> str:
    """Return the flag of a setting: ``--store-contact-points`` for store.contact_points."""
    return f"--{setting.section}-{setting.name}".replace("_", "-")


def load(
    file: Path | None = None, environment: Mapping[str, str] | None = None, flags: Mapping[str, str] | None = None
) -> Configuration:
    """Load the settings.

    Args:
        file: the TOML file; None: the file of :data:`FILE_VARIABLE`, or :data:`DEFAULT_FILE` if it exists.
        environment: the environment variables.
        flags: the given flags, as text by the setting's path.

    Raises:
        ConfigError: lists all problems at once.
    """
    environment = environment or {}
    layers = _Layers({one.path: one for one in declared(Settings)})
    path = _file(file, environment)
    if path is not None:
        layers.read_file(path)
    layers.read_environment(environment)
    for name, text in (flags or {}).items():
        setting = layers.known[name]
        layers.take(setting, text, setting.kind.from_text, f"flag {flag_name(setting)}")
    if layers.problems:
        raise ConfigError(layers.problems)
    settings = _built(layers)
    problems = [Problem(f"{name} ({layers.sources[name]})", message) for name, message in impossible(settings)]
    if problems:
        raise ConfigError(problems)
    return Configuration(settings, layers.sources, path)


def _file(file: Path | None, environment: Mapping[str, str]) -> Path | None:
    if file is not None:
        return file
    if named := environment.get(FILE_VARIABLE):
        return Path(named).expanduser()
    return DEFAULT_FILE if DEFAULT_FILE.is_file() else None


def _built(layers: _Layers) -> Settings:
    sections: dict[str, dict[str, Any]] = {}
    for setting in layers.known.values():
        sections.setdefault(setting.section, {})[setting.name] = layers.values[setting.path]
    empty = Settings()
    return Settings(**{name: type(getattr(empty, name))(**values) for name, values in sections.items()})


class _Layers:
    """The values while the layers are applied one over another, their sources, and the problems found."""

    def __init__(self, known: Mapping[str, Setting]) -> None:
        self.known = known
        self.sections = tuple(dict.fromkeys(one.section for one in known.values()))
        self.values = {path: _expanded(one.default) for path, one in known.items()}
        self.sources = dict.fromkeys(known, _DEFAULT)
        self.problems: list[Problem] = []

    def take(self, setting: Setting, given: Any, parse: Callable[[Any], Any], source: str) -> None:
        """Set the value of a setting, or add a problem."""
        try:
            self.values[setting.path] = setting.checked(parse(given))
            self.sources[setting.path] = source
        except ValueError as error:
            shown = "what is given" if setting.secret else repr(given)
            self.problems.append(Problem(source, f"{setting.path} is {shown}: {error}"))

    def read_file(self, path: Path) -> None:
        """Apply the file's layer."""
        try:
            text = path.read_bytes().decode()
            content = tomllib.loads(text)
        except OSError as error:
            self.problems.append(Problem(str(path), f"the file cannot be read: {error.strerror}"))
        except UnicodeDecodeError as error:
            self.problems.append(Problem(str(path), f"the file is not UTF-8: {error.reason} at byte {error.start}"))
        except tomllib.TOMLDecodeError as error:
            self.problems.append(Problem(str(path), f"the file is not TOML: {error}"))
        except RecursionError:
            self.problems.append(Problem(str(path), "the file nests lists or tables too deeply for settings"))
        else:
            for section, given in content.items():
                self._read_section(path, text, section, given)

    def _read_section(self, path: Path, text: str, section: str, given: Any) -> None:
        if section not in self.sections:
            meant = did_you_mean(section, self.sections)
            message = f"section [{section}] is unknown{meant}: there are {', '.join(self.sections)}"
            self.problems.append(Problem(_place(path, text, section, ""), message))
        elif not isinstance(given, dict):
            message = f"{section} is a section: write [{section}], and its settings below"
            self.problems.append(Problem(_place(path, text, "", section), message))
        else:
            for name, value in given.items():
                place = _place(path, text, section, name)
                setting = self.known.get(f"{section}.{name}")
                if setting is None:
                    self.problems.append(Problem(place, self._unknown(section, name)))
                else:
                    self.take(setting, value, setting.kind.from_toml, place)

    def _unknown(self, section: str, name: str) -> str:
        names = [one.name for one in self.known.values() if one.section == section]
        return f"{section}.{name} is unknown{did_you_mean(name, names)}: [{section}] has {', '.join(names)}"

    def read_environment(self, environment: Mapping[str, str]) -> None:
        """Apply the layer of environment variables. Variables without a section's prefix are ignored."""
        by_name = {environment_name(one): one for one in self.known.values()}
        for name, text in environment.items():
            if (setting := by_name.get(name)) is not None:
                self.take(setting, text, setting.kind.from_text, f"environment variable {name}")
            elif any(name.startswith(f"{_PREFIX}{section.upper()}_") for section in self.sections):
                message = f"it names no setting{did_you_mean(name, [*by_name])}"
                self.problems.append(Problem(f"environment variable {name}", message))


def _expanded(value: Any) -> Any:
    return value.expanduser() if isinstance(value, Path) else value


def _place(path: Path, text: str, section: str, name: str) -> str:
    line = line_of(text, section, name)
    return f"{path}:{line}" if line else str(path)


def line_of(text: str, section: str, name: str) -> int:
    """Return the line (from 1) of ``name`` in ``section``. An empty ``name`` finds the section. 0: not found."""
    wanted = ".".join(part for part in (section, name) if part)
    here = ""
    for number, line in enumerate(text.splitlines(), 1):
        if (header := _HEADER.match(line)) is not None:
            here = _bare_key(header[1])
            found = here
        elif (key := _KEY.match(line)) is not None:
            found = f"{here}.{_bare_key(key[1])}" if here else _bare_key(key[1])
        else:
            continue
        if found == wanted or (not name and found.startswith(f"{wanted}.")):
            return number
    return 0


def _bare_key(key: str) -> str:
    return re.sub(r"""["'\s]""", "", key)
