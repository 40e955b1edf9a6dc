"""Code that runs on several threads lets msgspec look at types by ``known`` alone: see millwheel/sdk/known_types.py."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.house.tree import ROOT, package_modules, parse

LOOKING = {"Decoder": 0, "convert": 1, "multi_type_info": 0, "type_info": 0}
"""What looks at a type, and which argument this is. It may also have the name ``type``."""
OWNERS = {
    "inspect",
    "json",
    "msgpack",
    "msgspec",
    "msgspec.inspect",
    "msgspec.json",
    "msgspec.msgpack",
    "msgspec_inspect",
}
PLACES = ("millwheel/connectors/", "millwheel/sdk/", "millwheel/streams/")
"""What else decodes runs on the event loop."""
KNOWN_BEFORE = {
    "millwheel/sdk/known_types.py",
    "millwheel/sdk/schema_decoder.py",  # its types are made by the same call
    "millwheel/connectors/kafka/avro_types.py",  # after AvroValues
    "millwheel/connectors/kafka/protobuf_types.py",  # after ProtobufValues
}
CONVERTED = {
    "cassandra/settings.py": "_File",  # known in its module
    "files/records.py": "self.type",  # after RecordType
    "kafka/avro.py": "kind",  # after AvroValues
    "kafka/protobuf.py": "self._kind",  # after ProtobufValues
    "postgres/rows.py": "self.kind",  # after fields_of
    "redis/entries.py": "kind",  # after reads_as
    "codecs.py": "_plain_container(annotation)",  # which looks at it
}
"""By the end of a path: the types that ``convert`` takes there, each of which is known before."""


def test_threads_look_at_types_by_known_alone() -> None:
    """Regression: two threads looked at one type at the same time, and the process ended."""
    found = {
        f"{name}:{call.lineno}"
        for path in package_modules()
        if (name := str(path.relative_to(ROOT))).startswith(PLACES) and name not in KNOWN_BEFORE
        for function in ast.walk(parse(path))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for call in _calls(function)
        if any(_is_open(kind) and not _is_converted(name, call, kind) for kind in _looked_at(call))
    }
    assert found == set(), "make the decoder in the module, or look at the type by known()"


def test_calls_that_look_at_types_are_found() -> None:
    open_ones = ["msgspec.json.Decoder(kind)", "json.decode(data, type=list[kind])", "inspect.type_info(kind)"]
    open_ones += ["msgspec.convert(row, kind)", "msgspec.convert(row, type=self.kind)", "json.Decoder(type=kind)"]
    closed = ["msgspec.json.Decoder(known(kind))", "json.decode(data, type=dict[str, Any])", "inspect.type_info(int)"]
    closed += ["msgspec.convert(row, known(kind))", "msgspec.convert(row, dict[str, int])", "self.type.convert(row, 7)"]
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
    named = [one.value for one in call.keywords if one.arg == "type"]
    if function.attr == "decode":
        return named
    at = LOOKING.get(function.attr)
    if at is None or ast.unparse(function.value) not in OWNERS:
        return []
    return call.args[at : at + 1] or named


def _is_converted(name: str, call: ast.Call, kind: ast.expr) -> bool:
    """Whether it is one of the types that ``convert`` takes and that are known before."""
    places = (one for one, known in CONVERTED.items() if known == ast.unparse(kind))
    return ast.unparse(call.func) == "msgspec.convert" and name.endswith(tuple(f"/{one}" for one in places))


def _is_open(kind: ast.expr) -> bool:
    """Whether it may have a class with fields, and is not looked at before."""
    if isinstance(kind, ast.Call) and ast.unparse(kind.func) == "known":
        return False
    names = {one.id for one in ast.walk(kind) if isinstance(one, ast.Name)}
    return not names <= {"Any", "bool", "bytes", "dict", "float", "int", "list", "object", "str", "tuple"}
