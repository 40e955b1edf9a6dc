"""Redis: streams as sources and as sinks, and commands as sinks, exactly once. See docs/redis.md.

It needs ``openmillwheel[redis]`` where a topology runs. A program that only declares one does without.
"""

from millwheel.connectors.redis.entries import RedisEntry
from millwheel.connectors.redis.places import StreamPosition
from millwheel.connectors.redis.servers import RedisError
from millwheel.connectors.redis.streams import source
from millwheel.connectors.redis.writers import command, sink, values

__all__ = ["RedisEntry", "RedisError", "StreamPosition", "command", "sink", "source", "values"]
