"""Generated classes of Protobuf: compiled by the real compiler, each schema with names of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_tools import protoc

WELL_KNOWN = files("grpc_tools").joinpath("_proto")


def descriptors(texts: Mapping[str, str]) -> list[FileDescriptorProto]:
    """The descriptors of files, and of all that they import: what is imported comes first."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in texts.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        made = Path(folder, "descriptors")
        arguments = ["protoc", f"-I{folder}", f"-I{WELL_KNOWN}", "--include_imports", f"--descriptor_set_out={made}"]
        assert protoc.main([*arguments, *texts]) == 0
        return list(FileDescriptorSet.FromString(made.read_bytes()).file)


def classes(*found: FileDescriptorProto) -> Any:
    """Finds the class of a message by its full name."""
    pool = DescriptorPool()
    for one in found:
        pool.Add(one)
    return lambda name: GetMessageClass(pool.FindMessageTypeByName(name))


def compiled(texts: str | Mapping[str, str], name: str = "shop.Bid") -> Any:
    """The class of a message of a file, or of several by their paths."""
    given = {"shop/bids.proto": texts} if isinstance(texts, str) else texts
    return classes(*descriptors(given))(name)


def proto3(body: str) -> str:
    """A file of the package ``shop``."""
    return f'syntax = "proto3";\npackage shop;\n{body}\n'
