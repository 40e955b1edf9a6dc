"""A schema registry, as a program names it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar, overload

from google.protobuf.message import Message

from millwheel.connectors.kafka.avro import AvroValues
from millwheel.connectors.kafka.formats import JsonValues, RegistryFormat
from millwheel.connectors.kafka.protobuf import ProtobufValues
from millwheel.connectors.kafka.registry import RegistryAccess

__all__ = ["SchemaRegistry"]

T = TypeVar("T")
M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class SchemaRegistry(RegistryAccess):
    """A registry that has the schemas of a topic's records, with the protocol of Confluent's Schema Registry.

    Karapace, Apicurio and Redpanda have this protocol, too. A record is a byte 0, the schema's id in four bytes, and
    the value.

    For example::

        registry = kafka.SchemaRegistry("https://schemas:8081", settings="/etc/millwheel/registry.properties")
        bids = topology.source("bids", Bid, kafka.source("bids", decode=registry.avro(Bid), brokers="kafka-1:9092"))

    Attributes:
        url: Its address, without user and password. None: the file has it.
        settings: The path of a file, on each worker, with ``name=value`` on each line: ``url``,
            ``basic.auth.user.info=USER:${PASSWORD}``, ``bearer.auth.token``, ``ssl.ca.location``,
            ``ssl.certificate.location``, ``ssl.key.location`` and ``ssl.key.password``. ``${NAME}`` is an environment
            variable of the worker. The file is read at each call, so a renewed password is found.

    Raises:
        UsageError: An argument cannot be used.
    """

    def avro(
        self, kind: type[T], *, schema: str | None = None, subject: str = "{topic}-value", register: bool = True
    ) -> RegistryFormat[T]:
        """The format of records in Avro, for ``decode=`` of a source and ``value=`` of a sink.

        A value is read by the schema with which it was written, and becomes a ``kind`` field by field: by name or
        alias, with the defaults of ``kind``.

        Args:
            kind: The type of the values, such as a Struct.
            schema: What a sink writes with. None: it follows from ``kind``.
            subject: Under which name a sink registers the schema. ``{topic}`` is the topic, and ``{record}`` is the
                name of the schema's record.
            register: Whether a sink registers the schema. False: it must be there.

        Raises:
            UsageError: An argument cannot be used.
        """
        return RegistryFormat(self, AvroValues(kind, schema), subject, register)

    def json(
        self, kind: type[T], *, schema: str | None = None, subject: str = "{topic}-value", register: bool = True
    ) -> RegistryFormat[T]:
        """The format of records in JSON whose JSON Schema is in the registry. The arguments are those of :meth:`avro`.

        A value is checked by ``kind`` when it is read. So the registry is not asked then.

        Raises:
            UsageError: An argument cannot be used.
        """
        return RegistryFormat(self, JsonValues(kind, schema), subject, register)

    @overload
    def protobuf(
        self, kind: type[M], *, schema: str | None = None, subject: str = "{topic}-value", register: bool = True
    ) -> RegistryFormat[M]: ...
    @overload
    def protobuf(
        self,
        kind: type[T],
        message: type[Message],
        *,
        schema: str | None = None,
        subject: str = "{topic}-value",
        register: bool = True,
    ) -> RegistryFormat[T]: ...
    def protobuf(
        self,
        kind: type[Any],
        message: type[Message] | None = None,
        *,
        schema: str | None = None,
        subject: str = "{topic}-value",
        register: bool = True,
    ) -> RegistryFormat[Any]:
        """The format of records in Protobuf, for ``decode=`` of a source and ``value=`` of a sink.

        A message is read by a generated class, and the writer's schema says whether it is this one. A ``kind`` that is
        no generated class has the fields of the message by their names.

        For example::

            registry.protobuf(bids_pb2.Bid)
            registry.protobuf(Bid, bids_pb2.Bid)

        Args:
            kind: The type of the values: a generated class, or a Struct, a dataclass or a TypedDict.
            message: The generated class, if ``kind`` is none.
            schema: The text of the message's file for a sink. None: it is made of the class.
            subject: As for :meth:`avro`. ``{record}`` is the full name of the message. Each file that the message's
                file imports is registered, too: its subject is its path.
            register: As for :meth:`avro`.

        Raises:
            UsageError: An argument cannot be used.
        """
        return RegistryFormat(self, ProtobufValues(kind, message, schema), subject, register)
