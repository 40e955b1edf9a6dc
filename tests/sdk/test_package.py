"""Code packages: the same code makes the same bytes, and two packages never get each other's code."""

from __future__ import annotations

import hashlib
import io
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import millwheel as mw
from millwheel.sdk import loading, package
from millwheel.sdk.loading import load_topology
from millwheel.sdk.package import CodePackage, build_package
from millwheel.sdk.topology import TopologyGraph

TOPOLOGY = """\
import millwheel as mw

class Echo(mw.Computation[str, int]):
    def process_record(self, ctx, record):
        ctx.state += 1

it = mw.Topology({name!r})
it.source("words", str)
it.add(Echo, inputs={{"words": mw.key(str)}})
"""


def module_of(topology: TopologyGraph) -> ModuleType:
    """The module that made a topology. The package gives it another name."""
    (echo,) = topology.plan().computations.values()
    return sys.modules[echo.computation.__module__]


@pytest.fixture(autouse=True)
def _forget_packages() -> Iterator[None]:
    """Unload the packages of a test after it."""
    modules, finders = set(sys.modules), list(sys.meta_path)
    yield
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    sys.meta_path[:] = finders
    loading.finders.clear()


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def write_package(root: Path, name: str = "mw_shop", *, topology: str = "shop") -> Path:
    write(root / name / "__init__.py", "")
    write(root / name / "parts" / "__init__.py", "")
    write(root / name / "parts" / "words.py", "GREETING = 'hello'\n")
    write(root / name / "data.txt", "kept")
    write(root / name / "__pycache__" / "old.pyc", "dropped")
    write(root / name / ".hidden" / "x.py", "dropped")
    source = TOPOLOGY.format(name=topology) + "from .parts.words import GREETING\n"
    return write(root / name / "flow.py", source)


def names(built: CodePackage) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(built.data)).namelist()


def load(built: CodePackage, directory: Path) -> TopologyGraph:
    return load_topology(built.digest, built.data, built.entry_point, directory)


def test_a_package_holds_its_top_level_package_without_caches(tmp_path: Path) -> None:
    file = write_package(tmp_path)
    built = build_package(f"{file}:it")
    assert built.entry_point == "mw_shop.flow:it"
    assert names(built) == [
        "mw_shop/__init__.py",
        "mw_shop/data.txt",
        "mw_shop/flow.py",
        "mw_shop/parts/__init__.py",
        "mw_shop/parts/words.py",
    ]
    assert built.reference().digest == built.digest
    assert built.reference().entry_point == built.entry_point


def test_modules_are_found_by_name_without_importing_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "mw_loud" / "__init__.py", "raise RuntimeError('imported')")
    write(tmp_path / "mw_loud" / "flow.py", TOPOLOGY.format(name="loud"))
    monkeypatch.syspath_prepend(str(tmp_path))
    built = build_package("mw_loud.flow:it")
    assert names(built) == ["mw_loud/__init__.py", "mw_loud/flow.py"]
    assert "mw_loud" not in sys.modules


def test_modules_are_found_where_the_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "mw_single.py", TOPOLOGY.format(name="single"))
    monkeypatch.chdir(tmp_path)
    built = build_package("mw_single:it")
    assert names(built) == ["mw_single.py"]
    assert load(built, tmp_path / "packages").name == "single"


def test_the_same_code_has_the_same_digest_everywhere(tmp_path: Path) -> None:
    one, other = write_package(tmp_path / "one"), write_package(tmp_path / "other" / "deep")
    other.touch()
    first, second = build_package(f"{one}:it"), build_package(f"{other}:it")
    assert (first.data, first.digest) == (second.data, second.digest)
    entries = zipfile.ZipFile(io.BytesIO(first.data)).infolist()
    assert {(entry.date_time, entry.compress_type) for entry in entries} == {((1980, 1, 1, 0, 0, 0), 0)}
    other.write_text(other.read_text() + "\n")
    assert build_package(f"{other}:it").digest != first.digest


def test_a_single_file_is_packaged_alone_and_others_can_be_added(tmp_path: Path) -> None:
    file = write(tmp_path / "mw_alone.py", "from mw_friend import NAME\n" + TOPOLOGY.format(name="alone"))
    friend = write(tmp_path / "mw_friend.py", "NAME = 'x'\n")
    built = build_package(f"{file}:it")
    assert names(built) == ["mw_alone.py"]
    with pytest.raises(mw.PackageError) as raised:
        load(built, tmp_path / "packages")
    assert str(raised.value).startswith(
        f"package {built.digest[:12]}: importing 'mw_alone' failed with ModuleNotFoundError: "
        "No module named 'mw_friend'"
    )
    assert "package it too: submit with `--include mw_friend`" in str(raised.value)
    assert "mw_alone" not in sys.modules
    whole = build_package(f"{file}:it", include=[str(friend)])
    assert names(whole) == ["mw_alone.py", "mw_friend.py"]
    assert load(whole, tmp_path / "packages").name == "alone"


def test_an_error_of_a_program_says_its_file_and_line(tmp_path: Path) -> None:
    """The last line of the program's own files is named, and not one of a library below it."""
    file = write(tmp_path / "mw_raises.py", "def price():\n    return int('x')\n\nprice()\n")
    with pytest.raises(mw.PackageError, match=r"ValueError: .* \(mw_raises\.py, line 2, in price\)"):
        load(build_package(f"{file}:it"), tmp_path / "packages")
    file = write(tmp_path / "mw_decodes.py", "import json\njson.loads('{')\n")
    with pytest.raises(mw.PackageError, match=r"\(mw_decodes\.py, line 2\)"):
        load(build_package(f"{file}:it"), tmp_path / "packages")


def test_a_loaded_package_runs_from_its_own_directory(tmp_path: Path) -> None:
    built = build_package(f"{write_package(tmp_path)}:it")
    topology = load(built, tmp_path / "packages")
    assert topology.name == "shop"
    assert topology.validate() == []
    assert sys.modules["mw_shop.parts.words"].__file__ == str(
        tmp_path / "packages" / built.digest / "mw_shop" / "parts" / "words.py"
    )


def test_loading_the_same_package_again_gives_the_same_topology(tmp_path: Path) -> None:
    built = build_package(f"{write_package(tmp_path)}:it")
    assert load(built, tmp_path / "packages") is load(built, tmp_path / "packages")


@pytest.mark.paper(section="4.1")
def test_two_versions_of_one_module_run_side_by_side_unmixed(tmp_path: Path) -> None:
    old_file, new_file = (write_package(tmp_path / name, topology=name) for name in ("old", "new"))
    write(new_file.parent / "parts" / "words.py", "GREETING = 'good morning'\n")
    built = [build_package(f"{file}:it") for file in (old_file, new_file)]
    old, new = (load(one, tmp_path / "packages") for one in built)
    assert (old.name, new.name) == ("old", "new")
    assert load(built[0], tmp_path / "packages") is old
    assert load(built[1], tmp_path / "packages") is new
    assert greeting(old) == "hello"
    assert greeting(new) == "good morning"
    assert [one.to_spec().computations[0].implementation for one in (old, new)] == ["mw_shop.flow:Echo"] * 2


def greeting(topology: TopologyGraph) -> object:
    return vars(module_of(topology))["GREETING"]


APART = """\
import importlib
import importlib.util
import mw_shop.parts.words as words
import mw_shop.parts
from importlib import import_module
from mw_shop.parts import words as other
from mw_shop.parts.words import GREETING
from . import parts

def found():
    import mw_shop.parts.words
    by_name = importlib.import_module("mw_shop.parts.words"), import_module("mw_shop.parts.words")
    every = [words, other, parts.words, mw_shop.parts.words, *by_name, import_module(".parts.words", __package__)]
    assert importlib.util.find_spec("json") is not None
    return {id(one) for one in every}, GREETING
"""


def test_code_loaded_apart_finds_its_modules_by_any_import_form(tmp_path: Path) -> None:
    first = build_package(f"{write_package(tmp_path / 'one', topology='one')}:it")
    second = write_package(tmp_path / "two", topology="two")
    second.write_text(APART + second.read_text())
    write(second.parent / "parts" / "words.py", "GREETING = 'two'\n")
    load(first, tmp_path / "packages")
    topology = load(build_package(f"{second}:it"), tmp_path / "packages")
    same, greeting_found = vars(module_of(topology))["found"]()
    assert len(same) == 1
    assert greeting_found == "two"
    assert sys.modules["mw_shop.parts.words"].GREETING == "hello"


def test_code_that_pickles_is_refused_if_its_modules_are_renamed(tmp_path: Path) -> None:
    first = build_package(f"{write_package(tmp_path / 'one', topology='one')}:it")
    file = write_package(tmp_path / "two", topology="two")
    file.write_text("import pickle\n" + file.read_text())
    second = build_package(f"{file}:it")
    load(first, tmp_path / "packages")
    with pytest.raises(mw.PackageError) as raised:
        load(second, tmp_path / "packages")
    assert str(raised.value) == (
        f"package {second.digest[:12]}: importing 'mw_shop.flow' failed with ImportError: package {first.digest[:12]} "
        "holds a module 'mw_shop', too, so this package is loaded under other names, which 'pickle' would store: "
        "rename its modules, or encode by other means (mw_shop/flow.py, line 1)"
    )
    loading.unload_package(first.digest)
    assert load(second, tmp_path / "packages").name == "two", "alone it has its own names"


def test_a_package_that_is_unloaded_leaves_nothing_behind(tmp_path: Path) -> None:
    before = set(sys.modules), list(sys.meta_path)
    packages = [build_package(f"{write_package(tmp_path / name, topology=name)}:it") for name in ("one", "two")]
    for built in packages:
        load(built, tmp_path / "packages")
    for built in packages:
        loading.unload_package(built.digest)
    assert (set(sys.modules), list(sys.meta_path)) == before
    assert loading.finders == {}


def test_a_foreign_module_of_the_process_is_not_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_package(tmp_path)
    built = build_package(f"{file}:it")
    monkeypatch.syspath_prepend(str(tmp_path))
    elsewhere = __import__("mw_shop.flow").flow.it
    loaded = load(built, tmp_path / "packages")
    assert loaded is not elsewhere
    assert Path(str(module_of(loaded).__file__)).is_relative_to(tmp_path / "packages")


def test_a_packages_modules_precede_others_of_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = build_package(f"{write_package(tmp_path / 'mine', topology='mine')}:it")
    write_package(tmp_path / "installed", topology="installed")
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    assert load(built, tmp_path / "packages").name == "mine"


def test_damaged_bytes_are_refused(tmp_path: Path) -> None:
    built = build_package(f"{write_package(tmp_path)}:it")
    with pytest.raises(mw.PackageError, match=f"package {built.digest[:12]} is damaged: its bytes have the digest"):
        load_topology(built.digest, built.data[:-1] + b"x", built.entry_point, tmp_path / "packages")
    assert not (tmp_path / "packages").exists()


@pytest.mark.parametrize("name", ["../evil.py", "/evil.py", "a/../../evil.py"])
def test_a_package_cannot_write_outside_of_its_directory(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(buffer := io.BytesIO(), "w") as archive:
        archive.writestr(name, "x = 1")
    data = buffer.getvalue()
    digest = hashlib.sha256(data).hexdigest()
    with pytest.raises(mw.PackageError, match="which lies outside of it"):
        load_topology(digest, data, "evil:x", tmp_path / "packages")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_zip_is_refused(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"nonsense").hexdigest()
    with pytest.raises(mw.PackageError, match="is no zip file"):
        load_topology(digest, b"nonsense", "m:a", tmp_path)


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("its", "'mw_shop.flow:its' is no millwheel.Topology: it has it (did you mean 'it'?)"),
        ("Echo", "'mw_shop.flow:Echo' is no millwheel.Topology: it has it"),
    ],
)
def test_an_entry_point_without_a_topology_is_named_with_others(tmp_path: Path, attribute: str, message: str) -> None:
    built = build_package(f"{write_package(tmp_path)}:{attribute}")
    with pytest.raises(mw.PackageError) as raised:
        load(built, tmp_path / "packages")
    assert str(raised.value) == f"package {built.digest[:12]}: {message}"
    assert load_topology(built.digest, built.data, "mw_shop.flow:it", tmp_path / "packages").name == "shop"


def test_an_entry_point_outside_of_the_package_is_refused(tmp_path: Path) -> None:
    built = build_package(f"{write_package(tmp_path)}:it")
    with pytest.raises(mw.PackageError, match="has no module 'os', of its entry point 'os:environ'"):
        load_topology(built.digest, built.data, "os:environ", tmp_path / "packages")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            "mw_shop.flow",
            "'mw_shop.flow' names no topology: write package.module:attribute or path/to/file.py:attribute",
        ),
        ("mw_shop:a-b", "'mw_shop:a-b' names no topology: write package.module:attribute or path/to/file.py:attribute"),
        (
            "mw_nowhere.flow:it",
            "module 'mw_nowhere.flow' cannot be found: run this where it can be imported, or name its file",
        ),
        ("nowhere/flow.py:it", "there is no file 'nowhere/flow.py'"),
        ("math:it", "module 'math' is not made of Python files (built-in): only those can be packaged"),
        ("some-flow.py:it", "'some-flow.py' cannot be imported: 'some-flow' is no module name"),
        ("queue.py:it", "module 'queue' would hide the one that every process has: rename it ({here}/queue.py)"),
        ("mw_shop.flaw:it", "module 'mw_shop.flaw' cannot be found: there is no mw_shop/flaw.py in {here}"),
        ("millwheel.sdk:it", "module 'millwheel' would hide the one that every process has: rename it ({millwheel})"),
    ],
)
def test_code_that_cannot_be_packaged_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, message: str
) -> None:
    write_package(tmp_path)
    write(tmp_path / "some-flow.py", "")
    write(tmp_path / "queue.py", "")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(mw.PackageError) as raised:
        build_package(target)
    where = {"here": tmp_path.resolve(), "millwheel": Path(mw.__file__ or "").parent}
    if target.startswith("math"):
        assert "module 'math' is not made of Python files" in str(raised.value)
    else:
        assert str(raised.value) == message.format(**where)


def test_packages_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_package(tmp_path)
    with zipfile.ZipFile(io.BytesIO(build_package(f"{file}:it").data)) as archive:
        size = sum(one.file_size for one in archive.infolist())
    monkeypatch.setattr(package, "MAX_PACKAGE_BYTES", size)
    build_package(f"{file}:it")
    monkeypatch.setattr(package, "MAX_PACKAGE_BYTES", size - 1)
    with pytest.raises(mw.PackageError, match=rf"has more than {size - 1:,} bytes: keep data out of the package"):
        build_package(f"{file}:it")
    assert size < 64 << 20


def test_linked_directories_are_packaged_and_loops_refused(tmp_path: Path) -> None:
    file = write_package(tmp_path)
    write(tmp_path / "elsewhere" / "more.py", "X = 1")
    (file.parent / "linked").symlink_to(tmp_path / "elsewhere")
    assert "mw_shop/linked/more.py" in names(build_package(f"{file}:it"))
    (file.parent / "loop").symlink_to(file.parent)
    with pytest.raises(mw.PackageError, match="is a link to a directory above it"):
        build_package(f"{file}:it")
