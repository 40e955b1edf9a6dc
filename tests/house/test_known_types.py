"""Code that runs on several threads lets msgspec look at types by ``known`` alone: see millwheel/sdk/known_types.py."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.house.tree import ROOT, package_modules, parse

LOOKING = {"Decoder", "multi_type_info", "type_info"}
"""What looks at its first argument."""
OWNERS = {"inspect", "json", "msgpack", "msgspec.inspect", "msgspec.json", "msgspec.msgpack", "msgspec_inspect"}
PLACES = ("millwheel/connectors/", "millwheel/sdk/", "millwheel/streams/")
"""What else decodes runs on the event loop."""
KNOWN_BEFORE = {
    "millwheel/sdk/known_types.py",
    "millwheel/sdk/schema_decoder.py",  # its types are made by the same call
    "millwheel/connectors/kafka/avro_types.py",  # after AvroValues
    "millwheel/connectors/kafka/protobuf_types.py",  # after ProtobufValues
}


def test_threads_look_at_types_by_known_alone() -> None:
    """Regression: two threads looked at one type at the same time, and the process ended."""
    found = {
        f"{name}:{call.lineno}"
        for path in package_modules()
        if (name := str(path.relative_to(ROOT))).startswith(PLACES) and name not in KNOWN_BEFORE
        for function in ast.walk(parse(path))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for call in _calls(function)
        if any(_is_open(kind) for kind in _looked_at(call))
    }
    assert found == set(), "make the decoder in the module, or look at the type by known()"


def test_calls_that_look_at_types_are_found() -> None:
    open_ones = ["msgspec.json.Decoder(kind)", "json.decode(data, type=list[kind])", "inspect.type_info(kind)"]
    closed = ["msgspec.json.Decoder(known(kind))", "json.decode(data, type=dict[str, Any])", "inspect.type_info(int)"]
    for text in (*open_ones, *closed):
        (call,) = [one for one in _calls(ast.parse(text)) if ast.unparse(one) == text]
        assert any(map(_is_open, _looked_at(call))) == (text in open_ones), text


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (one for one in ast.walk(tree) if isinstance(one, ast.Call))


def _looked_at(call: ast.Call) -> list[ast.expr]:
    """The types that a call of msgspec looks at."""
    function = call.func
    if not isinstance(function, ast.Attribute):
        return []
    if function.attr == "decode":
        return [one.value for one in call.keywords if one.arg == "type"]
    of_msgspec = ast.unparse(function.value) in OWNERS
    return call.args[:1] if function.attr in LOOKING and of_msgspec else []


def _is_open(kind: ast.expr) -> bool:
    """Whether it may have a class with fields, and is not looked at before."""
    if isinstance(kind, ast.Call) and ast.unparse(kind.func) == "known":
        return False
    names = {one.id for one in ast.walk(kind) if isinstance(one, ast.Name)}
    return not names <= {"Any", "bool", "bytes", "dict", "float", "int", "list", "object", "str", "tuple"}
