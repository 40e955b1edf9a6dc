"""Where a daemon's processes listen, and by what name others reach them."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from millwheel.config import Settings
from millwheel.config.addresses import split_address
from millwheel.rpc.identity import TlsFiles

__all__ = ["Place", "advertised", "advertised_as", "place_of", "reachable", "tls_of"]

_PORTS: Final = MappingProxyType({"master": (7433, 9433), "authority": (7434, 9434), "worker": (7450, 9450)})
"""By role, where nothing else is said: of its service, and of its metrics."""

_LOOPBACK: Final = "127.0.0.1"
_EVERY: Final = frozenset({"0.0.0.0", "::"})
_OUTSIDE: Final = MappingProxyType({socket.AF_INET: ("192.0.2.1", 9), socket.AF_INET6: ("2001:db8::1", 9)})
"""Addresses for documentation, which nobody has."""


@dataclass(frozen=True, slots=True)
class Place:
    """What one process listens on; port 0 takes a free one, and ``metrics_port`` None is none."""

    host: str
    port: int
    metrics_host: str
    metrics_port: int | None


def place_of(role: str, settings: Settings, index: int = 0) -> Place:
    """Where process ``index`` of a daemon listens: on the ports after its first's, unless they are any."""
    service, metrics = _PORTS[role]
    host, port = split_address(settings.rpc.listen or f"{_LOOPBACK}:{service}")
    if settings.metrics.listen == "off":
        return Place(host, _moved(port, index), host, None)
    metrics_host, metrics_port = split_address(settings.metrics.listen or f"{_LOOPBACK}:{metrics}")
    return Place(host, _moved(port, index), metrics_host, _moved(metrics_port, index))


def _moved(port: int, index: int) -> int:
    return port + index if port else 0


def advertised(settings: Settings, bound: str, index: int = 0) -> str:
    """The address by which others reach process ``index``, which listens on ``bound``."""
    return advertised_as(settings.rpc.advertise, bound, index)


def advertised_as(given: str, bound: str, index: int = 0) -> str:
    """``bound``, under the host, or host:port, that is ``given``, if any is."""
    if not given:
        return bound
    host, colon, port = given.rpartition(":")
    if colon and port.isdecimal() and (":" not in host or host.endswith("]")):
        return f"{host}:{_moved(int(port), index)}"
    shown = f"[{given}]" if ":" in given and not given.startswith("[") else given
    return f"{shown}:{split_address(bound)[1]}"


def reachable(host: str) -> str:
    """By what others reach who listens on ``host``: empty for itself; for every address, that of this machine."""
    if host not in _EVERY:
        return ""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            # Nothing is sent: the system says by which of its addresses it would go out.
            probe.connect(_OUTSIDE[family])
        except OSError:
            return socket.gethostname()
        return str(probe.getsockname()[0])


def tls_of(settings: Settings) -> TlsFiles | None:
    """The files of [rpc], if it names them."""
    rpc = settings.rpc
    if rpc.tls_ca is None or rpc.tls_cert is None or rpc.tls_key is None:
        return None
    return TlsFiles(rpc.tls_ca, rpc.tls_cert, rpc.tls_key)
