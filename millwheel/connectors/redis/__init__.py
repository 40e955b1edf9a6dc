"""Redis: streams as sources and as sinks, and commands as sinks, exactly once. See docs/redis.md.

It needs ``openmillwheel[redis]`` where a topology runs. A program that only declares one does without.
"""

from millwheel.connectors.redis.entries import RedisEntry
from millwheel.connectors.redis.places import Position
from millwheel.connectors.redis.servers import RedisError
from millwheel.connectors.redis.streams import source
from millwheel.connectors.redis.writers import command, sink, values

__all__ = ["Position", "RedisEntry", "RedisError", "command", "sink", "source", "values"]
