"""MQTT: topics as sources, once, and as sinks, at least once. See docs/mqtt.md.

It needs ``openmillwheel[mqtt]`` where a topology runs. A program that only declares one does without.
"""

from millwheel.connectors.mqtt.brokers import MqttError
from millwheel.connectors.mqtt.deliveries import SessionPosition
from millwheel.connectors.mqtt.messages import MqttMessage
from millwheel.connectors.mqtt.topics import source
from millwheel.connectors.mqtt.writers import sink

__all__ = ["MqttError", "MqttMessage", "SessionPosition", "sink", "source"]
