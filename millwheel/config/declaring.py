"""How a section declares its settings, and a list of all declared settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, get_type_hints

from millwheel.config.kinds import Check, Kind, kind_of

__all__ = ["Setting", "declared", "setting"]


def setting(
    default: Any,
    meaning: str,
    *,
    bounds: tuple[float, float] | None = None,
    check: Check | None = None,
    secret: bool = False,
    allowed: str = "",
) -> Any:
    """Return a dataclass field for one setting of a section.

    Args:
        default: the default value.
        meaning: one line for the reference in docs/operations.md.
        bounds: the least and the largest value of a number.
        check: checks and normalizes a value.
        secret: the value is never shown, and there is no flag for it.
        allowed: the values that ``check`` accepts, in words, if the type alone does not say that.
    """
    about = {"meaning": meaning, "bounds": bounds, "check": check, "secret": secret, "allowed": allowed}
    return field(default=default, repr=not secret, metadata=about)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, as its section declares it. For the last five fields see :func:`setting`."""

    section: str
    name: str
    default: Any
    kind: Kind
    meaning: str
    bounds: tuple[float, float] | None
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
        within = "" if self.bounds is None else f" from {self.bounds[0]} to {self.bounds[1]}"
        return self.allowed or self.kind.takes + within

    def checked(self, value: Any) -> Any:
        """Return ``value``, which has the right type, after its check; ValueError says what is allowed."""
        if self.bounds is not None and not self.bounds[0] <= value <= self.bounds[1]:
            raise ValueError(f"it takes {self.takes}")
        return value if self.check is None else self.check(value)


def declared(settings: type) -> Iterator[Setting]:
    """Yield every setting of a dataclass whose fields are sections, in order."""
    hints = get_type_hints(settings)
    for section in fields(settings):
        kind = hints[section.name]
        types = get_type_hints(kind)
        for one in fields(kind):
            yield Setting(section.name, one.name, one.default, kind_of(types[one.name]), **one.metadata)
