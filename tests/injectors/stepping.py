"""Drives an injector's core by hand: one event, its effects, and its invariants."""

from __future__ import annotations

from collections.abc import Iterable

from millwheel.client.injector.core import InjectorCore
from millwheel.client.injector.messages import InjectorEffect, InjectorEvent, PublishWatermark, SendBatch

__all__ = ["sends", "step"]


def step(core: InjectorCore, event: InjectorEvent, now: int = 0) -> list[InjectorEffect]:
    """The effects of an event, except those on the published watermark: that is ``core.published``."""
    effects = core.step(event, now)
    core.check_invariants()
    return [effect for effect in effects if not isinstance(effect, PublishWatermark)]


def sends(effects: Iterable[InjectorEffect]) -> list[SendBatch]:
    """The sendings among effects."""
    return [effect for effect in effects if isinstance(effect, SendBatch)]
