"""When this process's certificate ends: a metric, and a warning in the log from 30 days before."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from millwheel.rpc.access.credentials import of_certificate
from millwheel.rpc.failures import RequestError
from millwheel.rpc.identity import TlsFiles

__all__ = ["WARN_DAYS", "certificate_problems", "certificate_warning", "register_certificate", "warn_of_end"]

log = logging.getLogger("millwheel.security")

WARN_DAYS: Final = 30
_DAY_SECONDS: Final = 86_400.0


def _end(tls: TlsFiles) -> float:
    """Return when the certificate in the file ends, in seconds since the epoch. 0: it cannot be read."""
    try:
        return of_certificate(tls.cert.read_bytes()).expires
    except (OSError, RequestError):
        return 0.0


def register_certificate(registry: CollectorRegistry, tls: TlsFiles) -> None:
    """Add the metric of a process with TLS."""
    gauge = Gauge(
        "millwheel_certificate_end_timestamp_seconds",
        "When the certificate in rpc.tls_cert ends, in seconds since the epoch; 0: it cannot be read",
        registry=registry,
    )
    gauge.set_function(lambda: _end(tls))


def certificate_warning(tls: TlsFiles, now: float) -> str:
    """Return what to say of a certificate that ends soon, or has ended. Empty: it lasts."""
    end = _end(tls)
    days = (end - now) / _DAY_SECONDS
    if not end or days > WARN_DAYS:
        return ""
    when = time.strftime("%Y-%m-%d", time.gmtime(end))
    what = f"ends on {when}, in {int(days)} days" if days >= 0 else f"has ended on {when}"
    return (
        f"the certificate {tls.cert} {what}: make a new one (`millwheel certificates create --renew`) and restart the "
        "daemon"
    )


def certificate_problems(tls: TlsFiles) -> tuple[str, ...]:
    """Return the warning for the health of the cluster, if there is one."""
    warning = certificate_warning(tls, time.time())
    return (warning,) if warning else ()


async def warn_of_end(tls: TlsFiles) -> None:
    """Write the warning to the log at the start and once a day. Runs until it is cancelled."""
    while True:
        if warning := certificate_warning(tls, time.time()):
            log.warning("%s", warning)
        await asyncio.sleep(_DAY_SECONDS)
