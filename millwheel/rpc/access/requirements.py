"""What each method requires: read from the option ``millwheel.v1.access`` of the protos. Pure.

:class:`MethodAccess` finds the topologies that a request names. Invariant: a name that cannot be attributed to a
topology counts as the whole cluster (None), never as nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Any, Final

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from millwheel.model.incarnation import INJECTOR_PREFIX, IncarnationId, incarnation_of_journal, is_injector
from millwheel.model.stream_names import is_full, owner_of, query_parts
from millwheel.rpc.v1 import access_pb2

__all__ = [
    "PUBLIC",
    "MethodAccess",
    "NotAnInjectorError",
    "Path",
    "RoleRule",
    "TopologyOf",
    "access_of",
    "topology_of_query",
    "values_at",
]

PUBLIC: Final = ("/grpc.health.v1.", "/grpc.reflection.")
"""Methods for all callers that TLS admits."""

_REPLAY: Final = "replay/"
_SENDERS: Final = frozenset(("injectors", "replays"))
"""The kinds of names of which a request must have one, at any of the kind's paths."""

Path = tuple[str, ...]
TopologyOf = Callable[[IncarnationId], Awaitable[str | None]]
"""Returns the topology of an incarnation; None if it is unknown."""


class NotAnInjectorError(Exception):
    """A sender that only a process of the cluster may name. The argument is the sender."""


@dataclass(frozen=True, slots=True)
class RoleRule:
    """One of ``roles`` must be held for each topology that the paths name."""

    roles: frozenset[str]
    paths: tuple[tuple[str, Path], ...]
    """Each with its kind: the field of AccessRule that has it."""
    anywhere: bool

    def named(self, message: Message) -> tuple[tuple[str, str], ...]:
        """Return the names in a request, each with its kind. An absent single name is left out, but not a sender's.

        No rule would hold for what a sender without a name sends.
        """
        found: list[tuple[str, str]] = []
        for kind, path in self.paths:
            values = values_at(message, path)
            found += [(kind, value) for value, listed in values if value or listed or kind in _SENDERS]
        lacking = _SENDERS.intersection(kind for kind, _ in self.paths).difference(kind for kind, _ in found)
        found += [(kind, "") for kind in sorted(lacking)]
        return tuple(dict.fromkeys(found))

    async def topologies(self, named: tuple[tuple[str, str], ...], topology_of: TopologyOf) -> frozenset[str | None]:
        """Return the topologies of names. NotAnInjectorError: a name is not of an injector, and has to be."""
        return frozenset([await _topology(kind, value, topology_of) for kind, value in named])


@dataclass(frozen=True, slots=True)
class MethodAccess:
    """What one method requires."""

    method: str
    """The service and the method: ``TopologyService/PauseTopology``."""
    ways: tuple[tuple[RoleRule, ...], ...]
    """The rules, and those that a request may meet instead."""
    changes: bool
    first_message: bool
    kept: tuple[tuple[str, str, Path], ...]
    """Lists of the response whose elements are filtered: kind, list and the path of the name in an element."""
    hidden: tuple[str, ...]
    names_in: Callable[[Any], object] | None
    """Returns all names of a request at once, for comparing it with an earlier one. None: a path has a list."""

    @property
    def rules(self) -> tuple[RoleRule, ...]:
        """The rules of the first way."""
        return self.ways[0]

    @property
    def name(self) -> str:
        """The method alone: ``PauseTopology``."""
        return self.method.rpartition("/")[2]


def values_at(message: Message, path: Path) -> Iterator[tuple[str, bool]]:
    """Yield the texts at a path, each with whether it is an element of a list, or within one."""
    yield from _values(message, path, False)


def _values(message: Any, path: Path, listed: bool) -> Iterator[tuple[str, bool]]:
    field = message.DESCRIPTOR.fields_by_name[path[0]]
    value = getattr(message, path[0])
    many = field.is_repeated
    if field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
        yield from ((one, True) for one in value) if many else ((value, listed),)
        return
    for inner in value if many else ([value] if message.HasField(path[0]) else []):
        yield from _values(inner, path[1:], listed or many)


async def _topology(kind: str, value: str, topology_of: TopologyOf) -> str | None:
    if kind == "topologies":
        return value or None
    if kind == "streams":
        return _of_stream(value)
    if kind == "queries":
        return topology_of_query(value)
    if kind == "injectors":
        if not is_injector(value):
            raise NotAnInjectorError(value)
        return _of_stream(value.removeprefix(INJECTOR_PREFIX))
    if kind == "replays":
        if not value.startswith(_REPLAY) or not is_full(value.removeprefix(_REPLAY)):
            raise NotAnInjectorError(value)
        return owner_of(value.removeprefix(_REPLAY))
    if kind == "groups" and is_injector(value):
        return _of_stream(value.removeprefix(INJECTOR_PREFIX))
    incarnation = incarnation_of_journal(value) if kind == "journals" else IncarnationId(value)
    # A log's incarnation begins with its stream's full name. No computation's name has this separator.
    return owner_of(incarnation) if is_full(incarnation) else await topology_of(incarnation)


def _of_stream(name: str) -> str | None:
    return (owner_of(name) or None) if is_full(name) else None


def topology_of_query(query: str) -> str | None:
    """Return the topology in ``{query}/{topology}/{stream}``. None: the name has no such form."""
    parts = query_parts(query)
    return None if parts is None else parts[1]


@cache
def access_of(method: str) -> MethodAccess | None:
    """Return what ``/millwheel.v1.Service/Method`` requires. None: it is unknown, or has no option."""
    service, _, name = method.removeprefix("/").partition("/")
    try:
        found = descriptor_pool.Default().FindServiceByName(service).methods_by_name.get(name)
    except KeyError:
        return None
    if found is None or not found.GetOptions().HasExtension(access_pb2.access):
        return None
    option = found.GetOptions().Extensions[access_pb2.access]
    kept = [
        (kind, path.partition(".")[0], tuple(path.partition(".")[2].split(".")))
        for kind, paths in (
            ("topologies", option.kept_topologies),
            ("streams", option.kept_streams),
            ("queries", option.kept_queries),
        )
        for path in paths
    ]
    ways = tuple(tuple(_rule(rule) for rule in rules) for rules in (option.rules, option.alternatives) if rules)
    shown = f"{service.rpartition('.')[2]}/{name}"
    if not ways:
        return None
    names_in = _names_in(found.input_type, [path for rules in ways for rule in rules for _, path in rule.paths])
    return MethodAccess(shown, ways, option.changes, option.first_message, tuple(kept), tuple(option.hidden), names_in)


def _names_in(message: Any, paths: list[Path]) -> Callable[[Any], object] | None:
    """Return a function that reads the fields at ``paths``. It is much faster than :func:`values_at`."""
    for path in paths:
        inner = message
        for name in path:
            field = inner.fields_by_name[name]
            if field.is_repeated:
                return None
            inner = field.message_type
    return attrgetter(*(".".join(path) for path in paths)) if paths else None


_KINDS: Final = ("topologies", "streams", "incarnations", "journals", "groups", "injectors", "queries", "replays")


def _rule(option: access_pb2.AccessRule) -> RoleRule:
    paths = [(kind, tuple(path.split("."))) for kind in _KINDS for path in getattr(option, kind)]
    roles = frozenset(access_pb2.AccessRole.Name(role).lower() for role in option.roles)
    return RoleRule(roles, tuple(paths), option.anywhere)
