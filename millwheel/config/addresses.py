"""Checks for settings that are addresses: ``host:port``, and lists of them. Pure."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Final

__all__ = [
    "TAKES_ADDRESS",
    "TAKES_ADDRESSES",
    "address",
    "addresses",
    "is_loopback",
    "optional_address",
    "optional_url",
    "split_address",
]

_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.%\w]+\]|[^\s:\[\]/,]+):([0-9]{1,5})")
TAKES_ADDRESS: Final = "host:port, such as 127.0.0.1:7433 or [::1]:7433"
TAKES_ADDRESSES: Final = 'one host:port or more, such as ["10.0.0.1:2379", "10.0.0.2:2379"]'


def address(text: str) -> str:
    """Check for ``host:port``. Port 0 means a free port."""
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found[2]) > 65_535:
        raise ValueError(f"it takes {TAKES_ADDRESS}")
    return text


def optional_address(text: str) -> str:
    """Check for ``host:port`` or an empty string."""
    return address(text) if text else text


def addresses(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Check for a list of at least one ``host:port``. Port 0 is refused, because no client can connect to it."""
    if not texts:
        raise ValueError(f"it takes {TAKES_ADDRESSES}")
    for text in texts:
        if split_address(address(text))[1] == 0:
            raise ValueError(f"it takes {TAKES_ADDRESSES}: port 0 is no port to connect to")
    return texts


def split_address(text: str) -> tuple[str, int]:
    """Return the host (without brackets) and the port of ``host:port``."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def optional_url(text: str) -> str:
    """The address of a collector, as http://host:port or https://host:port, or nothing. ValueError for other text."""
    scheme, _, place = text.partition("://")
    if text and scheme not in ("http", "https"):
        raise ValueError("it begins with http:// or https://")
    return f"{scheme}://{address(place)}" if text else ""
