"""Questions to the brokers about topics: what partitions they have, and where these end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from threading import Lock
from typing import Any

from millwheel.connectors.kafka.clients import ANSWER_SECONDS, Access, KafkaClient, KafkaError, is_moving, library

__all__ = ["Asker", "NoTopicError"]

Ask = Callable[[Any], Mapping[Any, "Future[Any]"]]


class NoTopicError(KafkaError):
    """There is no such topic."""


class Asker:
    """Asks for all readers or writers of a process that belong to one source or sink.

    It has connections of its own. On one that fetches, an answer waits behind the fetch, which takes half a second. The
    client is opened at the first question, and another one after a failure: a password may have changed.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._lock = Lock()
        self._client: KafkaClient | None = None

    async def partitions(self, topic: str) -> dict[int, int]:
        """The partitions of a topic, each with the number of its replicas.

        Raises:
            KafkaError: The brokers do not answer.
            NoTopicError: There is no such topic.
        """
        wanted = library().TopicCollection([topic])
        found = await self._answer(
            f"topic {topic!r} cannot be looked up",
            lambda admin: admin.describe_topics(wanted, request_timeout=ANSWER_SECONDS),
            topic,
        )
        return {one.id: len(one.replicas) for one in found.partitions}

    async def end(self, topic: str, partition: int, *, committed: bool = True) -> int:
        """The offset behind the last record of a partition. ``committed``: before the first one that is not.

        Raises:
            KafkaError: The brokers do not answer.
        """
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

        wanted: Any = {library().TopicPartition(topic, partition): OffsetSpec.latest()}  # type: ignore[no-untyped-call]
        levels = library().IsolationLevel
        level = levels.READ_COMMITTED if committed else levels.READ_UNCOMMITTED
        found = await self._answer(
            f"partition {partition} of topic {topic!r}",
            lambda admin: admin.list_offsets(wanted, isolation_level=level, request_timeout=ANSWER_SECONDS),
            topic,
        )
        return int(found.offset)

    async def setting(self, topic: str, name: str) -> str | None:
        """A setting of a topic, also if it is the default of the brokers. None: they have no such setting.

        Raises:
            KafkaError: The brokers do not answer, or do not say it to this user.
        """
        from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]

        wanted = [ConfigResource(ResourceType.TOPIC, topic)]
        found = await self._answer(
            f"the settings of topic {topic!r}",
            lambda admin: admin.describe_configs(wanted, request_timeout=ANSWER_SECONDS),
            topic,
        )
        return str(found[name].value) if name in found else None

    async def make(self, topic: str, partitions: int, replicas: int, config: Mapping[str, str]) -> None:
        """Make a topic."""
        from confluent_kafka.cimpl import NewTopic

        made = NewTopic(topic, partitions, replicas, config=dict(config))
        await self._answer(
            f"topic {topic!r} cannot be made",
            lambda admin: admin.create_topics([made], request_timeout=ANSWER_SECONDS),
            topic,
        )

    async def extend(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions: so many in all."""
        from confluent_kafka.cimpl import NewPartitions

        more = NewPartitions(topic, partitions)
        await self._answer(
            f"topic {topic!r} gets no more partitions",
            lambda admin: admin.create_partitions([more], request_timeout=ANSWER_SECONDS),
            topic,
        )

    async def _answer(self, what: str, ask: Ask, topic: str) -> Any:
        client = self._client
        if client is None:
            client = await asyncio.to_thread(self._open)
        began = client.begins()
        end = began + ANSWER_SECONDS
        while True:
            try:
                (answer,) = ask(client.handle).values()
                # The client sets the answer in any case. So it is not cancelled with the caller.
                found = await asyncio.shield(asyncio.wrap_future(answer))
            except library().KafkaException as error:
                if error.args[0].code() == library().KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise NoTopicError(f"there is no topic {topic!r} at {client}: make it, or mend the name") from error
                if not is_moving(error.args[0]) or time.monotonic() > end:
                    self._drop(client)
                    raise client.failure(what, error, began) from error
            else:
                client.answered()
                return found
            await asyncio.sleep(0.1)

    def _open(self) -> KafkaClient:
        with self._lock:
            if self._client is None:
                self._client = self._access.admin()
            return self._client

    def _drop(self, client: KafkaClient) -> None:
        with self._lock:
            if self._client is client:
                self._client = None
