"""The addresses on which a daemon's processes listen, and the addresses that other processes use to reach them."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from millwheel.config import Settings
from millwheel.config.addresses import split_address
from millwheel.rpc.identity import TlsFiles

__all__ = ["ListenAddress", "advertised", "advertised_as", "listen_address_of", "reachable", "tls_of"]

_PORTS: Final = MappingProxyType({"master": (7433, 9433), "authority": (7434, 9434), "worker": (7450, 9450)})
"""Default ports by role: of the service, and of the metrics."""

_LOOPBACK: Final = "127.0.0.1"
_EVERY: Final = frozenset({"0.0.0.0", "::"})
_OUTSIDE: Final = MappingProxyType({socket.AF_INET: ("192.0.2.1", 9), socket.AF_INET6: ("2001:db8::1", 9)})
"""Addresses that are reserved for documentation. No machine has them."""


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """The address on which one process listens. Port 0: any free port. ``metrics_port`` None: no metrics."""

    host: str
    port: int
    metrics_host: str
    metrics_port: int | None


def listen_address_of(role: str, settings: Settings, index: int = 0) -> ListenAddress:
    """Return the address on which process ``index`` of a daemon listens.

    Its ports are those of the first process plus ``index``. Port 0 stays 0.
    """
    service, metrics = _PORTS[role]
    host, port = split_address(settings.rpc.listen or f"{_LOOPBACK}:{service}")
    if settings.metrics.listen == "off":
        return ListenAddress(host, _moved(port, index), host, None)
    metrics_host, metrics_port = split_address(settings.metrics.listen or f"{_LOOPBACK}:{metrics}")
    return ListenAddress(host, _moved(port, index), metrics_host, _moved(metrics_port, index))


def _moved(port: int, index: int) -> int:
    return port + index if port else 0


def advertised(settings: Settings, bound: str, index: int = 0) -> str:
    """Return the address by which other processes reach process ``index``, which listens on ``bound``."""
    return advertised_as(settings.rpc.advertise, bound, index)


def advertised_as(given: str, bound: str, index: int = 0) -> str:
    """Return the advertised address: ``bound`` with host, or host and port, replaced by those in ``given``.

    A port in ``given`` is the port of process 0. An empty ``given`` replaces nothing.
    """
    if not given:
        return bound
    host, colon, port = given.rpartition(":")
    if colon and port.isdecimal() and (":" not in host or host.endswith("]")):
        return f"{host}:{_moved(int(port), index)}"
    shown = f"[{given}]" if ":" in given and not given.startswith("[") else given
    return f"{shown}:{split_address(bound)[1]}"


def reachable(host: str) -> str:
    """Return the host by which other machines reach a server that listens on ``host``.

    Returns:
        This machine's own address if ``host`` means every address. Otherwise an empty text: ``host`` itself is right.
    """
    if host not in _EVERY:
        return ""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting a datagram socket sends nothing. It only selects the local address for outgoing packets.
            probe.connect(_OUTSIDE[family])
        except OSError:
            return socket.gethostname()
        return str(probe.getsockname()[0])


def tls_of(settings: Settings) -> TlsFiles | None:
    """Return the TLS files of the section [rpc], or None if one of them is not set."""
    rpc = settings.rpc
    if rpc.tls_ca is None or rpc.tls_cert is None or rpc.tls_key is None:
        return None
    return TlsFiles(rpc.tls_ca, rpc.tls_cert, rpc.tls_key)
