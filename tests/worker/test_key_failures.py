"""Key functions that raise, as a worker remembers them for operators (section 4.2)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import millwheel as mw
from millwheel.model.catalog import Consumer
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.key_failures import KEY_ROUND
from millwheel.rpc.v1 import common_pb2 as common
from millwheel.rpc.v1 import inspection_pb2 as wire
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.codecs import codec_for
from millwheel.sdk.errors import UsageError, ValueDecodeError
from millwheel.sdk.keys import KeyExtractor, encode_key
from millwheel.worker.messages import HookFailed
from millwheel.worker.process.key_failures import KeyFailures
from millwheel.worker.process.load import LoadMeter
from millwheel.worker.process.metrics import WorkerCollector
from millwheel.worker.process.tallies import Tallies

NOW = 1_700_000_000_000_000
SECOND = 1_000_000
COUNT = Consumer(
    IncarnationId("count.1"),
    "words",
    "count",
    specs.KeySpec(function="words:initial"),
    specs.CodeReference(digest="ab" * 32, entry_point="words:words"),
    exactly_once=True,
    feedback=False,
    log=False,
)
OTHER = replace(
    COUNT, incarnation=IncarnationId("other.2"), computation="other", key=specs.KeySpec(fields=["text", "user"])
)


def initial(word: Any) -> Any:
    return word.text[0]


def nothing(word: Any) -> Any:
    return None


def raised(key: KeyExtractor = mw.key(initial), value: Any = 7) -> Exception:  # noqa: B008
    try:
        key.bind(object, "spoken", "count")(value)
    except Exception as error:
        return error
    raise AssertionError("there is a key")


def note(failures: KeyFailures, at: int, process: str = "", error: Exception | None = None) -> HookFailed:
    waiting = common.WaitingRecords(process=process, oldest_us=5) if process else None
    return failures.failed(COUNT, "spoken", error or raised(), waiting, at)


def shown(failures: KeyFailures, at: int, *consumers: Consumer) -> list[wire.KeyFunctionFailure]:
    return failures.shown({"spoken": consumers or (COUNT,)}.__getitem__, at)


def processes(failures: KeyFailures, at: int) -> list[str]:
    (one,) = shown(failures, at)
    return [it.process for it in one.waiting]


def test_an_error_without_text_is_a_failure_like_any_other() -> None:
    class WordlessError(Exception):
        def __str__(self) -> str:
            raise ValueError

    def speechless(word: Any) -> Any:
        raise WordlessError

    failures = KeyFailures()
    reported = note(failures, NOW, error=raised(mw.key(speechless)))
    (one,) = shown(failures, NOW)
    assert (one.error, one.message) == ("WordlessError", "(it has no text: its __str__ raised ValueError)")
    assert reported.message.endswith(f"WordlessError: {one.message}")


def test_a_failure_shows_what_the_users_code_raised_and_where() -> None:
    failures = KeyFailures()
    reported = note(failures, NOW)
    note(failures, NOW + SECOND, "p")
    (one,) = shown(failures, NOW + 2 * SECOND)
    assert (one.consumer, one.stream, one.extractor) == ("count.1", "spoken", "key function")
    assert (one.error, one.message) == ("AttributeError", "'int' object has no attribute 'text'")
    assert one.place.startswith("test_key_failures.py:")
    assert one.place.endswith(" in initial")
    assert (one.attempts, one.since_us, one.last_us) == (2, NOW, NOW + SECOND)
    assert reported.message.startswith(
        "computation 'count', key function of stream 'spoken': AttributeError: 'int' object"
    )
    assert isinstance(reported.error, AttributeError), "whose traceback the log shows"


def test_what_is_no_key_is_shown_with_the_words_of_the_extractor() -> None:
    failures = KeyFailures()
    note(failures, NOW, error=raised(mw.key(nothing)))
    (one,) = shown(failures, NOW)
    assert one.error == "KeyExtractionError"
    assert "got None (None), and a key is made of str and int only" in one.message


def test_a_key_by_fields_is_named_by_them() -> None:
    failures = KeyFailures()
    failures.failed(OTHER, "spoken", raised(), None, NOW)
    (one,) = shown(failures, NOW, COUNT, OTHER)
    assert one.extractor == "key 'text', 'user'"


def test_a_record_of_another_type_is_shown_with_its_value() -> None:
    failures = KeyFailures()
    decode = codec_for(str, "stream 'spoken'").decode
    try:
        decode(b"\x07")
    except ValueDecodeError as error:
        note(failures, NOW, "p", error)
    (one,) = shown(failures, NOW)
    assert (one.extractor, one.error) == ("decoder", "ValueDecodeError")
    assert one.message.startswith("stream 'spoken': 7 is no str: ")


def test_records_wait_for_as_long_as_their_injector_asks() -> None:
    failures = KeyFailures()
    note(failures, NOW)
    assert processes(failures, NOW) == [], "this record may have been refused"
    note(failures, NOW + SECOND, "q")
    note(failures, NOW + 5 * SECOND, "p")
    assert processes(failures, NOW + 5 * SECOND) == ["p", "q"]
    later = NOW + 5 * SECOND + KEY_ROUND
    assert "p" in processes(failures, later), "the injector may ask no earlier, where workers hang"
    note(failures, later, "q")
    assert processes(failures, later + KEY_ROUND) == ["q"]


def test_a_process_that_has_its_keys_waits_no_more() -> None:
    failures = KeyFailures()
    note(failures, NOW, "p")
    note(failures, NOW, "q")
    failures.got_keys(OTHER, "spoken", "p")
    failures.got_keys(COUNT, "written", "p")
    assert processes(failures, NOW) == ["p", "q"]
    failures.got_keys(COUNT, "spoken", "p")
    assert processes(failures, NOW) == ["q"]


class Odd(Exception):
    """A user's error with a cause outside our hierarchy."""


def test_the_users_own_error_is_shown_for_any_cause() -> None:
    def chained(word: Any) -> Any:
        try:
            return encode_key(None)  # type: ignore[arg-type]
        except UsageError as error:
            raise Odd("mine") from error

    failures = KeyFailures()
    note(failures, NOW, error=raised(mw.key(chained)))
    (one,) = shown(failures, NOW)
    assert (one.error, one.message) == ("Odd", "mine")


def test_a_failure_is_forgotten_after_a_minute() -> None:
    failures = KeyFailures()
    note(failures, NOW)
    assert shown(failures, NOW + 59 * SECOND)
    note(failures, NOW + 61 * SECOND)
    (one,) = shown(failures, NOW + 61 * SECOND)
    assert (one.attempts, one.since_us) == (1, NOW + 61 * SECOND)
    assert shown(failures, NOW + 121 * SECOND) == []


def test_a_failure_is_forgotten_with_its_consumer_or_its_code() -> None:
    for present in (
        [OTHER],
        [replace(COUNT, incarnation=IncarnationId("count.9"))],
        [replace(COUNT, code=specs.CodeReference(digest="cd" * 32, entry_point="words:words"))],
    ):
        failures = KeyFailures()
        note(failures, NOW)
        assert shown(failures, NOW, *present) == []
        assert shown(failures, NOW) == []


def test_a_worker_reports_and_counts_them() -> None:
    failures = KeyFailures()
    note(failures, NOW, "p")
    note(failures, NOW, "p")
    (reported,) = LoadMeter(list, key_functions=lambda: shown(failures, NOW)).load().key_functions
    assert reported.attempts == 2
    collector = WorkerCollector(Tallies(), key_failures=failures.totals)

    def samples() -> list[tuple[dict[str, str], float]]:
        found = [one for metric in collector.collect() for one in metric.samples]
        return [(one.labels, one.value) for one in found if one.name == "millwheel_key_failures_total"]

    assert samples() == [({"topology": "words", "computation": "count", "stream": "spoken"}, 2)]
    shown(failures, NOW + 61 * SECOND)
    assert samples() != [], "a counter does not go back"
    failures.keep({("words", "other")})
    assert samples() == []
