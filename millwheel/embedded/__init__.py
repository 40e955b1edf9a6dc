"""The embedded database: the store and the coordinator of one machine, in one RocksDB (section 6)."""
