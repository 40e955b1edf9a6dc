"""Files of Protobuf as text: the compiler makes the same descriptor of it again."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from millwheel.connectors.kafka.protobuf_places import places_in, places_of
from millwheel.connectors.kafka.protobuf_text import proto_text
from tests.connectors.kafka.messages import WELL_KNOWN, classes, descriptors
from tests.house.tree import ROOT

OLD = r"""
syntax = "proto2";
package shop.old;
import public "google/protobuf/duration.proto";
import "google/protobuf/descriptor.proto";
option java_package = "com.shop";
option (note) = {text: "a \"b\"\n" more: [1, 2]};
extend google.protobuf.FileOptions { optional Note note = 50001; }
extend google.protobuf.FieldOptions {
  repeated string tag = 50001;
  optional float part = 50002;
}
message Note { optional string text = 1; repeated int32 more = 2; }
message Bid {
  option deprecated = true;
  required string item = 1 [default = "a \"lamp\" {", (tag) = "x", (tag) = "message Y {", (part) = 0.5];
  optional bytes raw = 2 [default = "\001\"\377"];
  optional double share = 3 [default = -inf, json_name = "theShare"];
  optional Color color = 4 [default = BLUE, deprecated = true];
  repeated group Step = 5 { required int32 at = 1; message Inner { optional bool done = 1; } }
  message Later { optional sint64 much = 1 [default = -7]; }
  oneof end { string sold = 6; group Gone = 7 { optional Later why = 1; } }
  map<string, Later> laters = 8;
  repeated fixed32 packed = 9 [packed = true];
  optional bool done = 10 [default = true];
  extensions 100 to 199, 500;
  extensions 1000 to max;
  reserved 20, 30 to 39;
  reserved "former", "older";
  extend Bid { optional Later extra = 100; optional group Wide = 101 { optional int32 x = 1; } }
  extend Note2 { optional string more = 100; }
}
message Note2 { extensions 100 to 200; }
enum Color {
  option allow_alias = true;
  RED = 0; BLUE = -1 [deprecated = true]; GREEN = 7; VERT = 7;
  reserved 20, 30 to 39, 100 to max;
  reserved "WHITE";
}
service Shop {
  option deprecated = true;
  rpc Sell (Bid) returns (stream Note);
  rpc Watch (stream .shop.old.Bid.Later) returns (Note) { option deprecated = true; }
}
"""
NEW = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Bid {
  optional string by = 4;
  string item = 1;
  google.protobuf.Timestamp at = 2;
  optional int64 cents = 3;
  oneof end { option (x) = true; string sold = 5; Kind gone = 6; }
  string wide = 7;
  oneof other { bool yes = 8; }
  enum Kind { NONE = 0; SOME = 1; }
  map<int32, Kind> kinds = 9;
  message Deep { message Deeper { message Deepest {} Deepest one = 1; } }
}
message Empty {}
import "google/protobuf/descriptor.proto";
extend google.protobuf.OneofOptions { bool x = 50001; }
"""
EDITION = """
edition = "2023";
package shop;
option features.field_presence = IMPLICIT;
message Bid {
  string item = 1;
  string by = 2 [features = {field_presence: EXPLICIT}];
  Step step = 3 [features.message_encoding = DELIMITED];
  message Step { int32 at = 1; }
  reserved former, older;
}
"""


DESCRIPTORS = (Path(str(WELL_KNOWN)) / "google/protobuf/descriptor.proto").read_text()


def known(texts: dict[str, str]) -> dict[str, FileDescriptorProto]:
    """By name: the descriptors of files, which know the options that these files define."""
    found = descriptors(texts)
    of_file = classes(*found)("google.protobuf.FileDescriptorProto")
    return {one.name: of_file.FromString(one.SerializeToString()) for one in found}


def others() -> Iterator[tuple[str, Path]]:
    """The protos of MillWheel, of the compiler, and of Google's APIs."""
    for folder in (ROOT / "proto", Path(str(WELL_KNOWN)), Path(str(files("google.rpc"))).parent.parent):
        for path in sorted(folder.glob("google/**/*.proto")) or sorted(folder.rglob("*.proto")):
            yield str(path.relative_to(folder)), path


def sorted_file(file: FileDescriptorProto) -> FileDescriptorProto:
    """The file, with nested messages by name: entries of maps and groups have no place among these in a text."""
    made = FileDescriptorProto.FromString(file.SerializeToString())
    waiting = list(made.message_type)
    for one in waiting:
        nested = sorted(one.nested_type, key=lambda message: message.name)
        del one.nested_type[:]
        one.nested_type.extend(nested)
        waiting.extend(one.nested_type)
    return made


@pytest.mark.parametrize("text", [OLD, NEW, EDITION])
def test_the_compiler_makes_the_same_of_the_text(text: str) -> None:
    name = "shop/bids.proto"
    file = known({name: text, "google/protobuf/descriptor.proto": DESCRIPTORS})[name]
    made = proto_text(file)
    assert sorted_file(descriptors({name: made})[-1]) == sorted_file(file), made
    assert places_in(made) == places_in(text) == places_of(file)


def test_many_files_are_the_same_as_text() -> None:
    texts = {name: path.read_text() for name, path in others()}
    found = known(texts)
    assert len(found) > 30
    again = known({name: proto_text(one) for name, one in found.items()})
    assert {name for name, one in found.items() if sorted_file(again[name]) != sorted_file(one)} == set()
    for one in found.values():
        assert places_in(proto_text(one)) == places_of(one)
    for name, text in texts.items():
        assert places_in(text) == places_of(found[name])


def test_strings_are_escaped() -> None:
    file = FileDescriptorProto(name="a.proto", syntax="proto3")
    file.options.java_package = 'a"b\\c\n\x7f é'
    (again,) = descriptors({"a.proto": proto_text(file)})
    assert again == file
