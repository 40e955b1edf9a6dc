"""How a section declares its settings, and a list of all declared settings."""

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
    """Return a dataclass field for one setting of a section.

    Args:
        default: the default value.
        meaning: one line for the reference in docs/operations.md.
        check: checks and normalizes a value.
        secret: the value is never shown, and there is no flag for it.
        allowed: the values that ``check`` accepts, in words, if the type alone does not say that.
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
        """The setting's name in messages: ``section.name``."""
        return f"{self.section}.{self.name}"

    @property
    def takes(self) -> str:
        """The allowed values, in words."""
        return self.allowed or self.kind.takes

    def checked(self, value: Any) -> Any:
        """Return ``value``, which has the right type, after its check; ValueError says what is allowed."""
        return value if self.check is None else self.check(value)


def declared(settings: type) -> Iterator[Setting]:
    """Yield every setting of a dataclass whose fields are sections, in order."""
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
