"""What KEDA and Kubernetes do with a ScaledObject: how many workers a moment needs. Pure.

The formulas are those of the HorizontalPodAutoscaler (kubernetes.io, "Algorithm details" and "Configurable scaling
behavior") for metrics with a target per pod. KEDA makes one of a ScaledObject.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

TOLERANCE: Final = 0.1
"""By so much the load of a pod may differ from its target without a change: Kubernetes' default."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """A query, whose result is the sum over all pods, and what one pod takes of it."""

    name: str
    query: str
    threshold: float


@dataclass(frozen=True, slots=True)
class Policy:
    """The most that a number of replicas changes within a period."""

    kind: str
    value: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Scaling:
    """A ScaledObject."""

    least: int
    most: int
    polling_seconds: float
    triggers: Sequence[Trigger]
    up: Sequence[Policy]
    down: Sequence[Policy]
    down_window_seconds: float


def scaling_of(manifest: dict[str, Any], faster: float = 1.0) -> Scaling:
    """Read a ScaledObject. All of its times are divided by ``faster``, for a test."""
    spec = manifest["spec"]
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior["scaleUp"]["stabilizationWindowSeconds"] == 0
    triggers = []
    for one in spec["triggers"]:
        assert (one["type"], one["metricType"]) == ("prometheus", "AverageValue")
        assert one["metadata"]["ignoreNullValues"] == "false"
        triggers.append(Trigger(one["name"], one["metadata"]["query"], float(one["metadata"]["threshold"])))

    def policies(direction: str) -> list[Policy]:
        given = behavior[direction]["policies"]
        return [Policy(one["type"], one["value"], one["periodSeconds"] / faster) for one in given]

    return Scaling(
        spec["minReplicaCount"],
        spec["maxReplicaCount"],
        spec["pollingInterval"] / faster,
        triggers,
        policies("scaleUp"),
        policies("scaleDown"),
        behavior["scaleDown"]["stabilizationWindowSeconds"] / faster,
    )


@dataclass(slots=True)
class Autoscaler:
    """Decides the number of replicas at each moment."""

    scaling: Scaling
    _wanted: deque[tuple[float, int]] = field(default_factory=deque)
    """What the load needed, at the moments within the window."""
    _changes: list[tuple[float, int]] = field(default_factory=list)
    """Replicas that came or went, at their moments."""

    def decide(self, now: float, replicas: int, values: Mapping[str, float]) -> int:
        """The number of replicas from now on. ``values``: those of the triggers that gave one."""
        wanted = max(
            [self._needed(replicas, one, values) for one in self.scaling.triggers if one.name in values] or [0]
        )
        if len(values) < len(self.scaling.triggers):
            # A value that is missing might be large.
            wanted = max(wanted, replicas)
        wanted = min(max(wanted, self.scaling.least), self.scaling.most)
        self._wanted.append((now, wanted))
        while self._wanted[0][0] < now - self.scaling.down_window_seconds:
            self._wanted.popleft()
        if wanted < replicas:
            # A falling load counts when it has lasted.
            wanted = min(replicas, max(number for _, number in self._wanted))
        decided = min(max(wanted, self._lowest(now, replicas)), self._highest(now, replicas))
        if decided != replicas:
            self._changes.append((now, decided - replicas))
        return decided

    def _needed(self, replicas: int, trigger: Trigger, values: Mapping[str, float]) -> int:
        value = values[trigger.name]
        if abs(value / (trigger.threshold * replicas) - 1) <= TOLERANCE:
            return replicas
        return math.ceil(value / trigger.threshold)

    def _highest(self, now: float, replicas: int) -> int:
        limits = []
        for policy in self.scaling.up:
            before = replicas - self._changed(now, policy, 1)
            more = before * policy.value / 100 if policy.kind == "Percent" else policy.value
            limits.append(math.ceil(before + more))
        return max(limits)

    def _lowest(self, now: float, replicas: int) -> int:
        limits = []
        for policy in self.scaling.down:
            before = replicas - self._changed(now, policy, -1)
            fewer = before * policy.value / 100 if policy.kind == "Percent" else policy.value
            limits.append(math.floor(before - fewer))
        return min(limits)

    def _changed(self, now: float, policy: Policy, sign: int) -> int:
        """By how much the number has changed in one direction within a policy's period."""
        return sum(by for at, by in self._changes if at > now - policy.seconds and by * sign > 0)
