"""When this process's certificate and the CA end: metrics, and warnings in the log from 30 days before."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from millwheel.rpc.identity import TlsFiles

__all__ = ["WARN_DAYS", "certificate_problems", "certificate_warnings", "register_certificate", "warn_of_end"]

log = logging.getLogger("millwheel.security")

WARN_DAYS: Final = 30
_DAY_SECONDS: Final = 86_400.0


def _ends(file: Path) -> list[float]:
    """Return when the certificates in the file end, in seconds since the epoch. Empty: it cannot be read."""
    from cryptography import x509  # a process without TLS does not load it

    try:
        return [one.not_valid_after_utc.timestamp() for one in x509.load_pem_x509_certificates(file.read_bytes())]
    except (OSError, ValueError):
        return []


def _own_end(tls: TlsFiles) -> float:
    """Return when this process's certificate ends. It is the first one of its chain. 0: it cannot be read."""
    return next(iter(_ends(tls.cert)), 0.0)


def _ca_end(tls: TlsFiles) -> float:
    """Return when the first of the CAs ends. While a CA is replaced, the file has both. 0: it cannot be read."""
    return min(_ends(tls.ca), default=0.0)


def register_certificate(registry: CollectorRegistry, tls: TlsFiles) -> None:
    """Add the metrics of a process with TLS."""
    for name, what, end in (
        ("millwheel_certificate_end_timestamp_seconds", "When the certificate in rpc.tls_cert ends", _own_end),
        ("millwheel_ca_end_timestamp_seconds", "When the first certificate in rpc.tls_ca ends", _ca_end),
    ):
        gauge = Gauge(name, f"{what}, in seconds since the epoch; 0: it cannot be read", registry=registry)
        gauge.set_function(lambda end=end: end(tls))  # type: ignore[misc]


def certificate_warnings(tls: TlsFiles, now: float) -> tuple[str, ...]:
    """Return what to say of certificates that end soon, or have ended. Empty: they last."""
    found = (
        (_own_end(tls), f"the certificate {tls.cert}", "make a new one (`millwheel certificates create --renew`) and "
         "copy it over the old one"),
        (_ca_end(tls), f"the CA {tls.ca}", "make another one, and trust both while certificates are replaced"),
    )  # fmt: skip
    return tuple(f"{what} {_when(end, now)}: {remedy}" for end, what, remedy in found if _is_near(end, now))


def _is_near(end: float, now: float) -> bool:
    return 0 < end <= now + WARN_DAYS * _DAY_SECONDS


def _when(end: float, now: float) -> str:
    date = time.strftime("%Y-%m-%d", time.gmtime(end))
    return f"ends on {date}, in {int((end - now) / _DAY_SECONDS)} days" if end >= now else f"has ended on {date}"


def certificate_problems(tls: TlsFiles) -> tuple[str, ...]:
    """Return the warnings for the health of the cluster."""
    return certificate_warnings(tls, time.time())


async def warn_of_end(tls: TlsFiles) -> None:
    """Write the warnings to the log at the start and once a day. Runs until it is cancelled."""
    while True:
        for warning in certificate_warnings(tls, time.time()):
            log.warning("%s", warning)
        await asyncio.sleep(_DAY_SECONDS)
