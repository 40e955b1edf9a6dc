"""The store of a cluster: the contract on Apache Cassandra, with lightweight transactions (sections 6.1.2, 6.2)."""

from millwheel.store.cassandra.failures import StoreSettingsError
from millwheel.store.cassandra.settings import CassandraSettings
from millwheel.store.cassandra.store import CassandraStore

__all__ = ["CassandraSettings", "CassandraStore", "StoreSettingsError"]
