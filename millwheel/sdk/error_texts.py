"""The texts of errors that users' code raises. A user's error class may have a ``__str__`` that raises.

Invariant: these functions raise only KeyboardInterrupt, which does not come from the error. A worker needs the text to
count the failure, to show it, and to give up the work.
"""

from __future__ import annotations

import traceback

__all__ = ["bare_message", "error_message", "error_traceback"]


def error_message(error: BaseException) -> str:
    """The error's class and its text; the class alone if the text is empty."""
    text = bare_message(error)
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def bare_message(error: BaseException) -> str:
    """The error's text without its class, as ``str`` has it.

    Lone surrogates are escaped: such a text could not be stored or sent.
    """
    try:
        return _encodable(str(error))
    except KeyboardInterrupt:
        raise
    except BaseException as raised:  # also SystemExit and CancelledError
        return f"(it has no text: its __str__ raised {type(raised).__name__})"


def error_traceback(error: BaseException) -> str:
    """The tracebacks of the error and its causes. Only the error's message if they cannot be formatted."""
    try:
        return _encodable("".join(traceback.format_exception(error)))
    except KeyboardInterrupt:
        raise
    except BaseException:
        return f"{error_message(error)}\n"


def _encodable(text: str) -> str:
    # The text may be of a user's subclass of str, which may override ``encode``.
    return str.encode(text, "utf-8", "backslashreplace").decode()
