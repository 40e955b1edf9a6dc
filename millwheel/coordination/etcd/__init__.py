"""The coordinator on etcd, with MillWheel's own thin client for etcd's gRPC API."""

from __future__ import annotations

from millwheel.coordination.etcd.coordinator import EtcdCoordinator
from millwheel.coordination.etcd.settings import EtcdSettings

__all__ = ["EtcdCoordinator", "EtcdSettings"]
