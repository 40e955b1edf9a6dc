"""``python -m deploy.local.install``: download every component that tests and clusters need, unless it is installed."""

from __future__ import annotations

import sys

from deploy.local import etcd, jars, mosquitto, postgres, prometheus, redis
from deploy.local.apt import InstallError

__all__ = ["main"]


def main() -> int:
    """Install what is missing. Return 1 if a component cannot be installed, and print what to do."""
    try:
        etcd.install()
        prometheus.install()
        postgres.install()
        redis.install()
        mosquitto.install()
        jars.install(jars.CASSANDRA)
        jars.install(jars.KAFKA)
        jars.install(jars.APICURIO)
    except InstallError as error:
        print(f"install: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
