#!/opt/millwheel/bin/python -I
"""Whether the container's daemon serves its role. It ends with code 0 or 1, and says why.

A daemon with a page of metrics is asked there: the probe needs no certificate. Another one, such as
``server start-dev``, is asked by gRPC on the port of its service.
"""

from __future__ import annotations

import os
import ssl
import sys
import urllib.error
import urllib.request
from typing import Final

__all__ = ["main"]

_SECONDS: Final = 4.0
_SERVICE: Final = "7433"


def main() -> int:
    """Ask the daemon. Return the exit code."""
    page = os.environ.get("MILLWHEEL_METRICS_LISTEN", "")
    problem = _asked_page(page) if page not in ("", "off") else _asked_service()
    print(problem or "ok")
    return 1 if problem else 0


def _asked_page(listen: str) -> str:
    """Why the daemon is not ready, by its page. Empty: it is."""
    secured = bool(os.environ.get("MILLWHEEL_RPC_TLS_CERT"))
    address = _here(listen)
    context = ssl.create_default_context()
    # The certificate is for the name that others use, and this request goes to the container itself.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        url = f"{'https' if secured else 'http'}://{address}/readyz"
        urllib.request.urlopen(url, timeout=_SECONDS, context=context).close()
    except urllib.error.HTTPError as error:
        return error.read().decode(errors="replace").strip() or str(error)
    except OSError as error:
        return f"{address} does not answer: {error}"
    return ""


def _asked_service() -> str:
    """Why the daemon does not serve, by its service. Empty: it serves."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    address = _here(os.environ.get("MILLWHEEL_RPC_LISTEN", "") or f"127.0.0.1:{_SERVICE}")
    with grpc.insecure_channel(address) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=_SECONDS)
        except grpc.RpcError as error:
            return f"{address} does not answer: {error.details()}"
    return "" if answer.status == health_pb2.HealthCheckResponse.SERVING else f"{address} does not serve"


def _here(listen: str) -> str:
    """The address by which this container reaches what listens there."""
    host, _, port = listen.rpartition(":")
    return f"127.0.0.1:{port}" if host in ("0.0.0.0", "[::]") else f"{host}:{port}"


if __name__ == "__main__":
    sys.exit(main())
