"""The master's gRPC services: topologies, routing, injection, intervals, keys, streams, dead letters, health."""

from __future__ import annotations

from typing import Final

import grpc

from millwheel.master.replica import MasterReplica
from millwheel.master.services.cluster import ClusterServicer
from millwheel.master.services.injection import InjectionServicer
from millwheel.master.services.intervals import IntervalServicer
from millwheel.master.services.keys import KeyServicer
from millwheel.master.services.letters import LetterHandlingServicer
from millwheel.master.services.routing import RoutingServicer
from millwheel.master.services.streams import StreamServicer
from millwheel.master.services.topologies import TopologyServicer
from millwheel.rpc.v1 import (
    cluster_pb2_grpc,
    control_pb2_grpc,
    injection_pb2_grpc,
    interval_pb2_grpc,
    key_pb2_grpc,
    letter_pb2_grpc,
    stream_pb2_grpc,
)

__all__ = ["SERVICES", "add_services"]

SERVICES: Final = (
    "millwheel.v1.TopologyService",
    "millwheel.v1.RoutingService",
    "millwheel.v1.InjectionService",
    "millwheel.v1.IntervalService",
    "millwheel.v1.KeyService",
    "millwheel.v1.StreamService",
    "millwheel.v1.LetterHandlingService",
    "millwheel.v1.ClusterService",
)
"""The services' full names, for health and reflection."""


def add_services(server: grpc.aio.Server, replica: MasterReplica) -> None:
    """Add a master's services to ``server``."""
    control_pb2_grpc.add_TopologyServiceServicer_to_server(TopologyServicer(replica), server)
    control_pb2_grpc.add_RoutingServiceServicer_to_server(RoutingServicer(replica), server)
    injection_pb2_grpc.add_InjectionServiceServicer_to_server(InjectionServicer(replica), server)
    interval_pb2_grpc.add_IntervalServiceServicer_to_server(IntervalServicer(replica), server)
    key_pb2_grpc.add_KeyServiceServicer_to_server(KeyServicer(replica), server)
    stream_pb2_grpc.add_StreamServiceServicer_to_server(StreamServicer(replica), server)
    letter_pb2_grpc.add_LetterHandlingServiceServicer_to_server(LetterHandlingServicer(replica), server)
    cluster_pb2_grpc.add_ClusterServiceServicer_to_server(ClusterServicer(replica), server)
