"""The optional libraries of the package: which extras are installed here."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

__all__ = ["EXTRAS", "is_installed"]

EXTRAS: Final = {
    "arrow": ("pyarrow",),
    "avro": ("fastavro",),
    "delta": ("deltalake", "pyarrow"),
    "kafka": ("confluent_kafka",),
    "mqtt": ("paho",),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.grpc"),
    "postgres": ("psycopg",),
    "redis": ("redis",),
    "spark": ("pyspark", "pandas", "pyarrow"),
}
"""By extra: the modules that it installs. They are looked for, and not imported."""


def is_installed(extra: str) -> bool:
    """Return whether the modules of an extra can be imported here.

    Args:
        extra: Its name, as in ``openmillwheel[kafka]``.
    """
    try:
        return all(find_spec(module) is not None for module in EXTRAS[extra])
    except ModuleNotFoundError:
        return False  # find_spec("a.b") imports a
