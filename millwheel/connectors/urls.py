"""URLs of servers, which name passwords and do not have them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import parse_qsl, quote, urlsplit

from millwheel.sdk.errors import UsageError

__all__ = ["check_url", "filled_in", "place_in"]

_VARIABLE: Final = re.compile(r"\$\{(\w+)\}")
_VARIABLES: Final = re.compile(r"(?:\$\{\w+\})*")


def check_url(url: str, system: str, schemes: Sequence[str]) -> None:
    """Check the URL in a program.

    Raises:
        UsageError: It has another scheme, or a password.
    """
    parts = urlsplit(url)
    if parts.scheme not in schemes:
        raise UsageError(f"{system} needs a URL such as {' or '.join(f'{one}://' for one in schemes)}...")
    options = [value for name, value in parse_qsl(parts.query) if "password" in name]
    if not all(_VARIABLES.fullmatch(one) for one in (parts.password or "", *options)):
        raise UsageError(
            f"a program has no passwords: name an environment variable of the workers in the URL of {system}, as in "
            f"{schemes[0]}://USER:${{PASSWORD}}@HOST"
        )


def place_in(url: str) -> str:
    """What errors show of a URL: where the server is, without user and password."""
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2] or parts.path


def filled_in(url: str) -> str:
    """The URL with the values of the environment variables that it names as ``${NAME}``.

    Raises:
        UsageError: The worker does not have one of them.
    """
    return _VARIABLE.sub(_value, url)


def _value(match: re.Match[str]) -> str:
    name = match[1]
    if name not in os.environ:
        raise UsageError(f"a URL names the environment variable {name}, which the worker does not have")
    return quote(os.environ[name], safe="")
