"""Output for programs, and drawings."""

from __future__ import annotations

import json
import re

import pytest

from millwheel.cli.failing import ExitCode, exit_code_of, explain
from millwheel.cli.graph import to_dot, to_mermaid, to_text
from millwheel.cli.output import OutputFormat, Plain, print_plain, print_table, to_yaml
from millwheel.rpc.failures import FailureCode, RequestError
from tests.master.harness import computation, source, topology


def test_yaml_quotes_everything_that_could_be_misread() -> None:
    value: Plain = {
        "name": "zeit-geist",
        "empty": [],
        "none": {},
        "truth": True,
        "nothing": None,
        "word": "yes",
        "number": "12",
        "nested": [{"a": 1, "b": [1, 2]}, [], "x: y"],
        "odd key:": "line\nbreak",
    }
    assert to_yaml(value) == (
        "name: zeit-geist\n"
        "empty: []\n"
        "none: {}\n"
        "truth: true\n"
        "nothing: null\n"
        'word: "yes"\n'
        'number: "12"\n'
        "nested:\n"
        "  - a: 1\n"
        "    b:\n"
        "      - 1\n"
        "      - 2\n"
        "  - []\n"
        '  - "x: y"\n'
        '"odd key:": "line\\nbreak"\n'
    )
    assert to_yaml([]) == "[]\n"
    assert to_yaml("a\u2028b\x85") == '"a\\u2028b\\u0085"\n'


def test_json_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_plain({"ünï": [1, None]}, OutputFormat.JSON)
    assert json.loads(capsys.readouterr().out) == {"ünï": [1, None]}


def test_no_line_of_a_table_ends_in_spaces(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name", "notes"], [("a", ""), ("b", "n" * 300)])
    assert [line for line in capsys.readouterr().out.splitlines() if line != line.rstrip()] == []


def test_tables_in_a_pipe_are_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name", "keys"], [("a" * 300, "['', +inf)")])
    out = capsys.readouterr().out
    assert "a" * 300 in out
    assert "['', +inf)" in out
    assert out.startswith("NAME")
    print_table(["name"], [], "nothing here")
    assert capsys.readouterr().out == "nothing here\n"


def test_the_tree_shows_each_computation_once_and_marks_feedback() -> None:
    spec = topology(
        "ring",
        [source("in")],
        [computation("a", {"in": "k", "back": "k"}, ["there"], ("back",)), computation("b", {"there": "k"}, ["back"])],
    )
    assert to_text(spec) == (
        "topology ring\n"
        "in (source, app.Query)\n"
        "└─ [a]  key: k\n"
        "   └─ there\n"
        "      └─ [b]  key: k\n"
        "         └─ back\n"
        "            └─ [a]  key: k  feedback  (above)"
    )


def test_dot_and_mermaid_name_every_node_and_edge() -> None:
    spec = topology()
    dot = to_dot(spec)
    assert dot.startswith('digraph "zeitgeist" {')
    assert '"s:zeitgeist/queries" -> "c:window-counter" [label="text"];' in dot
    assert '"c:dip-detector" -> "s:zeitgeist/dips";' in dot
    assert 'label="dips"]' in dot
    mermaid = to_mermaid(spec)
    assert mermaid.startswith("flowchart LR")
    assert len(re.findall(r"-->", mermaid)) == 4
    assert 'n1["window-counter"]' in mermaid


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        (FailureCode.NOT_FOUND, ExitCode.NOT_FOUND),
        (FailureCode.UNAVAILABLE, ExitCode.UNAVAILABLE),
        (FailureCode.INVALID_ARGUMENT, ExitCode.INVALID),
        (FailureCode.ALREADY_EXISTS, ExitCode.CONFLICT),
        (FailureCode.INTERNAL, ExitCode.FAILED),
    ],
)
def test_exit_codes_mean_something(code: FailureCode, exit_code: ExitCode) -> None:
    assert exit_code_of(RequestError(code, "x")) is exit_code


def test_no_failure_shows_a_traceback(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILLWHEEL_DEBUG", raising=False)
    for error in (KeyboardInterrupt(), FileNotFoundError(2, "No such file", "x.py"), ValueError("odd")):
        explain(error)
    shown = capsys.readouterr().err.splitlines()
    assert shown[:2] == ["interrupted", "error: x.py: No such file"]
    assert len(shown) == 3
    assert exit_code_of(KeyboardInterrupt()) == 130
