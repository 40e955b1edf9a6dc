"""The rules between several settings. Pure, except that it checks the files that settings name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from millwheel.config.addresses import is_loopback, split_address
from millwheel.config.sections import Settings

__all__ = ["EXPOSED", "impossible", "unreadable"]

EXPOSED: Final = (
    "is not loopback, and there is no TLS: everyone who reaches it can do anything. Set rpc.tls_cert, rpc.tls_key and "
    "rpc.tls_ca, or, in a network that you trust, rpc.insecure = true"
)

_ANY: Final = ("0.0.0.0", "::", "")


def impossible(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield every contradiction between settings: the setting, and what is wrong with it."""
    yield from _tls(settings)
    rpc, metrics = settings.rpc, settings.metrics
    secured = rpc.tls_cert is not None or rpc.insecure
    if rpc.listen and not secured and not is_loopback(split_address(rpc.listen)[0]):
        yield "rpc.listen", f"{rpc.listen} {EXPOSED}"
    if rpc.listen and split_address(rpc.listen)[0] in _ANY and not rpc.advertise:
        yield "rpc.advertise", f"is missing: others cannot connect to {rpc.listen}, which stands for every address"
    if metrics.listen not in ("", "off") and not secured and not is_loopback(split_address(metrics.listen)[0]):
        yield "metrics.listen", f"{metrics.listen} {EXPOSED}"
    for name, section in (("coordinator", settings.coordinator), ("store", settings.store)):
        if section.kind == "embedded" and section.path is None:
            yield f"{name}.path", f'is missing: {name}.kind = "embedded" keeps everything in that directory'
    if "embedded" in (settings.store.kind, settings.coordinator.kind) and settings.worker.processes > 1:
        yield "worker.processes", "is more than 1, but an embedded store or coordinator serves one process alone"


def _tls(settings: Settings) -> Iterator[tuple[str, str]]:
    rpc = settings.rpc
    given = {"tls_cert": rpc.tls_cert, "tls_key": rpc.tls_key, "tls_ca": rpc.tls_ca}
    if any(given.values()):
        for name, path in given.items():
            if path is None:
                yield f"rpc.{name}", "is missing: TLS is mutual, and takes rpc.tls_cert, rpc.tls_key and rpc.tls_ca"
    elif settings.security.policy is not None:
        yield "security.policy", "is of no use without TLS: set rpc.tls_cert, rpc.tls_key and rpc.tls_ca"
    for name, section in (("coordinator", settings.coordinator), ("store", settings.store)):
        if (section.tls_cert is None) != (section.tls_key is None):
            missing = "tls_cert" if section.tls_cert is None else "tls_key"
            yield f"{name}.{missing}", f"is missing: {name}.tls_cert and {name}.tls_key go together"
        if section.tls_cert is not None and section.tls_ca is None:
            yield f"{name}.tls_ca", f"is missing: without it there is no TLS for {name}.tls_cert to be shown in"


def unreadable(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield every setting whose file cannot be read, and why."""
    for section in ("coordinator", "store", "rpc"):
        for name in ("tls_ca", "tls_cert", "tls_key"):
            path: Path | None = getattr(getattr(settings, section), name)
            if path is not None and not (path.is_file() and os.access(path, os.R_OK)):
                yield f"{section}.{name}", f"{path} is not a file that can be read"
    policy = settings.security.policy
    if policy is not None and not (policy.is_file() and os.access(policy, os.R_OK)):
        yield "security.policy", f"{policy} is not a file that can be read"
