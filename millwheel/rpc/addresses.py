"""Server addresses as users write them: ``host``, ``host:port``, ``[IPv6]:port``. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import IPv6Address
from typing import Final

from millwheel.rpc.failures import FailureCode, RequestError

__all__ = ["DEFAULT_PORT", "how_to_start", "server_address", "server_addresses"]

DEFAULT_PORT: Final = 7433
"""The port for an address without one: that of a master, and of ``millwheel server start-dev``."""

_ADDRESS: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[^\s:\[\]/,%]+)(?::(?P<port>[0-9]{1,5}))?")
_MAX_PORT: Final = 65_535
_LOOPBACK: Final = re.compile(r"127\.|localhost:|\[::1\]:")


def server_address(text: str) -> str:
    """Return the address of one server as ``host:port``.

    Args:
        text: a host name, an IPv4 address or an IPv6 address, with or without a port
            (without: :data:`DEFAULT_PORT`). An IPv6 address with a port is in brackets.

    Returns:
        The address. An IPv6 address is in brackets.

    Raises:
        RequestError: ``text`` is not an address (INVALID_ARGUMENT).

    >>> server_address("localhost"), server_address("[::1]:80"), server_address("::1")
    ('localhost:7433', '[::1]:80', '[::1]:7433')
    """
    text = text.strip()
    if _is_ipv6(text):
        return f"[{text}]:{DEFAULT_PORT}"
    found = _ADDRESS.fullmatch(text)
    port = DEFAULT_PORT if found is None or found["port"] is None else int(found["port"])
    if found is None or not 0 < port <= _MAX_PORT or (text[0] == "[" and not _is_ipv6(found["host"][1:-1])):
        raise RequestError(
            FailureCode.INVALID_ARGUMENT,
            f"{text!r} is not the address of a server",
            f"write host, host:port or [IPv6 address]:port; without a port it is {DEFAULT_PORT}",
            reason="ADDRESS_INVALID",
        )
    return f"{found['host']}:{port}"


def server_addresses(text: str) -> list[str]:
    """Return the addresses of a comma-separated list, without empty entries. RequestError as for one address."""
    return [server_address(one) for one in text.split(",") if one.strip()]


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True


def how_to_start(masters: Sequence[str]) -> str:
    """Return what to do if no master answers. A cluster of several machines has no development server.

    Args:
        masters: The addresses of the masters, as host:port. Empty: the server is no master.
    """
    if not masters:
        return "see whether its process runs, and whether the network leads there"
    start, other = "`systemctl start millwheel-master`", "with --address or MILLWHEEL_ADDRESS"
    if len(masters) > 1:
        return f"start a master by {start} on the machine of one of {', '.join(masters)}, or name others {other}"
    if not _LOOPBACK.match(masters[0]):
        return f"start it by {start} on its machine, or name another {other}"
    develop = "start one with `millwheel server start-dev`"
    if not masters[0].endswith(f":{DEFAULT_PORT}"):
        develop = f"start one with {start} if this is a cluster, else with `millwheel server start-dev`"
    return f"{develop}, or name another {other}"
