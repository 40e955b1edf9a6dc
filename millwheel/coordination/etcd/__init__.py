"""The coordinator on etcd, over a thin client of our own for its gRPC API."""

from __future__ import annotations

from millwheel.coordination.etcd.coordinator import EtcdCoordinator
from millwheel.coordination.etcd.settings import EtcdSettings

__all__ = ["EtcdCoordinator", "EtcdSettings"]
