"""A warning of topics that may lose what a sink has written."""

from __future__ import annotations

import logging

from millwheel.connectors.kafka.asking import Asker
from millwheel.connectors.kafka.clients import KafkaError

__all__ = ["Caution"]

log = logging.getLogger("millwheel.kafka")


class Caution:
    """Looks at each topic of a sink once in a process, and warns of one whose acknowledged records may be lost.

    Its brokers acknowledge a record that the leader alone has, if the other replicas are behind. With a single replica,
    it was the choice of the operator.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()

    async def look(self, asker: Asker, topic: str, replicas: int) -> None:
        """Look at a topic. No answer is no error: the user may not be allowed to see settings."""
        if replicas == 1 or topic in self._seen:
            return
        self._seen.add(topic)
        try:
            least = await asker.setting(topic, "min.insync.replicas")
        except KafkaError as error:
            log.debug("topic %r is not looked at: %s", topic, error)
            return
        if least == "1":
            log.warning(
                "topic %r has %d replicas and min.insync.replicas=1: a record that one broker alone has is "
                "acknowledged, and lost with this broker. Set min.insync.replicas to 2",
                topic,
                replicas,
            )
