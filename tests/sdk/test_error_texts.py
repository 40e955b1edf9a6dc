"""The texts of errors from user code. Their classes and ``__str__`` are the user's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import millwheel as mw
from millwheel.sdk.codecs import codec_for
from millwheel.sdk.error_texts import bare_message, error_message, error_traceback
from millwheel.sdk.errors import KeyExtractionError, ValueDecodeError


def wordless(text: Any) -> Exception:
    """An error whose ``__str__`` calls ``text``."""

    class WordlessError(Exception):
        def __str__(self) -> str:
            return text()  # type: ignore[no-any-return]

    return WordlessError()


def raises(error: BaseException) -> Any:
    def text() -> str:
        raise error

    return text


@pytest.mark.parametrize("error", [RuntimeError("x"), SystemExit(3), asyncio.CancelledError(), RecursionError()])
def test_an_error_whose_text_raises_is_reported_by_its_class(error: BaseException) -> None:
    expected = f"(it has no text: its __str__ raised {type(error).__name__})"
    assert bare_message(wordless(raises(error))) == expected
    assert error_message(wordless(raises(error))) == f"WordlessError: {expected}"
    assert "WordlessError" in error_traceback(wordless(raises(error)))


def test_an_error_whose_text_is_no_text_is_reported_by_its_class() -> None:
    shown = error_message(wordless(lambda: None))
    assert shown == "WordlessError: (it has no text: its __str__ raised TypeError)"


def test_an_error_without_text_is_its_class_alone() -> None:
    assert error_message(ValueError("no")) == "ValueError: no"
    assert error_message(ValueError()) == "ValueError"


def test_what_cannot_be_encoded_is_escaped() -> None:
    """Such a text could not be stored or sent."""
    for shown in (error_message(ValueError("a\ud800")), error_traceback(ValueError("a\ud800"))):
        assert "ValueError: a\\ud800" in shown


def raise_wordless(*_: Any) -> Any:
    raise wordless(raises(RuntimeError("x")))


def test_key_functions_and_codecs_name_errors_without_text() -> None:
    shown = "its __str__ raised RuntimeError"
    with pytest.raises(KeyExtractionError, match=shown) as no_key:
        mw.key(raise_wordless).bind(object, "spoken", "count")(1)
    assert no_key.value.computation == "count"
    codec = codec_for(bytes, "here", mw.Codec(raise_wordless, raise_wordless))
    with pytest.raises(ValueDecodeError, match=shown):
        codec.decode(b"")
