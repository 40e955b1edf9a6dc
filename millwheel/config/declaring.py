"""How a section declares its settings, and what is declared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Final, get_type_hints

from millwheel.config.kinds import Check, Kind, kind_of

__all__ = ["Setting", "declared", "setting"]

_ABOUT: Final = "setting"


@dataclass(frozen=True, slots=True)
class _About:
    meaning: str
    check: Check | None
    secret: bool
    allowed: str


def setting(default: Any, meaning: str, *, check: Check | None = None, secret: bool = False, allowed: str = "") -> Any:
    """A field of a section. ``meaning``: one line for the reference; a ``secret`` one is never shown, and has no flag.

    ``allowed`` says what ``check`` lets through, where the type alone does not.
    """
    return field(default=default, metadata={_ABOUT: _About(meaning, check, secret, allowed)})


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, as its section declares it."""

    section: str
    name: str
    default: Any
    meaning: str
    kind: Kind
    check: Check | None
    secret: bool
    allowed: str

    @property
    def path(self) -> str:
        """section.name, as messages call it."""
        return f"{self.section}.{self.name}"

    @property
    def takes(self) -> str:
        """What is allowed."""
        return self.allowed or self.kind.takes

    def checked(self, value: Any) -> Any:
        """``value``, of the right type, as it counts; ValueError says what is allowed."""
        return value if self.check is None else self.check(value)


def declared(settings: type) -> Iterator[Setting]:
    """Every setting of a dataclass whose fields are sections, in order."""
    hints = get_type_hints(settings)
    for section in fields(settings):
        kind = hints[section.name]
        types = get_type_hints(kind)
        for one in fields(kind):
            about: _About = one.metadata[_ABOUT]
            yield Setting(
                section.name,
                one.name,
                one.default,
                about.meaning,
                kind_of(types[one.name]),
                about.check,
                about.secret,
                about.allowed,
            )
