"""Real components, shared by all tests of a run; each is started when the first test asks for it.

Tests keep apart by names of their own: a key prefix, a keyspace.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from deploy.local.etcd import EtcdCluster

__all__ = ["etcd"]


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="millwheel-components-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def etcd() -> EtcdCluster:
    """One member of etcd with its default limits."""
    cluster = EtcdCluster(_folder() / "etcd")
    atexit.register(cluster.stop)
    cluster.start()
    return cluster
