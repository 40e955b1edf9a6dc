"""The client side of injection: sends records from outside into the system (section 5.2)."""

from millwheel.client.injector.blocking_injector import BlockingInjector
from millwheel.client.injector.errors import (
    ForgottenIdsError,
    InjectorClosedError,
    InjectorError,
    InjectorSupersededError,
    InvalidRecordsError,
    NotAckedError,
    RecordsLeftError,
    RefusedRecordError,
    StreamDrainingError,
)
from millwheel.client.injector.ids import BatchOf
from millwheel.client.injector.injector import Injector
from millwheel.client.injector.messages import Limits
from millwheel.client.injector.settings import InjectorSettings
from millwheel.client.injector.unacked import SentRecords

__all__ = [
    "BatchOf",
    "BlockingInjector",
    "ForgottenIdsError",
    "Injector",
    "InjectorClosedError",
    "InjectorError",
    "InjectorSettings",
    "InjectorSupersededError",
    "InvalidRecordsError",
    "Limits",
    "NotAckedError",
    "RecordsLeftError",
    "RefusedRecordError",
    "SentRecords",
    "StreamDrainingError",
]
