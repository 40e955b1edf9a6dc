"""Mutations of the connectors of Redis and MQTT: what was read, and what was written (sections 5.2, 6.1)."""

from __future__ import annotations

from millwheel.connectors.mqtt import deliveries, topics
from millwheel.connectors.redis import places, streams, writers
from simulation.mutations.base import rewriting

__all__: list[str] = []

_WHY = "simulated topologies have no connectors: the test shows it by itself, in seconds"

rewriting(
    "trimmed-entries-unnoticed",
    "G1",
    "a stream of Redis stops at entries that were removed unread",
    places,
    "_order(seen.first) > _order(position.id)",
    "False",
    seeds=0,
    test="tests/connectors/test_redis_places.py::test_what_is_removed_unread_is_noticed",
    why=_WHY,
)

rewriting(
    "redis-beginning-chosen-again",
    "G1",
    "where a stream begins is committed before anything is read",
    streams,
    "return Read([], self._position, behind=max(self._behind(self._position, seen), 1))",
    "pass",
    seeds=0,
    test="tests/connectors/test_redis_source.py::test_the_first_read_has_the_beginning_alone",
    why=_WHY,
)

rewriting(
    "redis-start-of-what-is-left",
    "G1",
    "entries that may have been removed behind a start are an error",
    places,
    "Missing(None, set_back=False) if removed else None",
    "None",
    seeds=0,
    test="tests/connectors/test_redis_places.py::test_no_start_skips_entries_silently",
    why=_WHY,
)

rewriting(
    "scripts-without-ids",
    "G1",
    "a batch that is in Redis is not written again",
    writers,
    "client.eval(_WRITE,",
    """client.eval(_WRITE.replace("return {'there'} end", "held_part = '0' end"),""",
    seeds=0,
    test="tests/connectors/test_redis_sinks.py::TestStream::test_a_batch_that_comes_again_changes_nothing",
    why=_WHY,
)

rewriting(
    "scripts-begin-again",
    "G1",
    "a batch that was written in part goes on behind that part",
    writers,
    "client.eval(_WRITE,",
    'client.eval(_WRITE.replace("record > done and", ""),',
    seeds=0,
    test="tests/connectors/test_redis_sinks.py::test_a_refused_record_is_named_and_its_batch_goes_on",
    why=_WHY,
)

rewriting(
    "acknowledged-before-the-commit",
    "G1",
    "a message of MQTT is acknowledged after its commit",
    topics,
    "self._returned.append(message.mid)",
    "self._link.acknowledge(message.mid)",
    seeds=0,
    test="tests/connectors/test_mqtt.py::test_messages_of_the_time_between_two_readers_come",
    why=_WHY,
)

rewriting(
    "messages-again-are-new",
    "G1",
    "a message of MQTT that comes again is recognised",
    deliveries,
    "delivery.again and one in",
    "False and one in",
    seeds=0,
    test="tests/connectors/test_mqtt_deliveries.py::test_each_message_is_taken_once_through_crashes",
    why=_WHY,
)
