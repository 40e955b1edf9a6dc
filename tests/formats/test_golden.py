"""What released versions stored and sent is read, and what this version writes is recorded (docs/upgrading.md)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from millwheel.rpc.v1 import catalog_pb2

from . import messages
from .golden import ALL_FORMATS, FORMS, changed_lines, missing, recorded, recorded_lines

ROOT = Path(__file__).parents[2]


def test_this_version_writes_the_forms_that_are_recorded() -> None:
    """A changed form needs a new format, unless older versions may ignore the difference (docs/upgrading.md)."""
    assert missing() == [], "read docs/upgrading.md; if no new format is needed: python -m tests.formats --write"


@pytest.mark.parametrize("number", ALL_FORMATS)
def test_each_recorded_form_is_read(number: int) -> None:
    known = recorded(number)
    assert known, "a format that this version reads has its forms recorded"
    for name, versions in known.items():
        for blob in versions:
            assert FORMS[name].read(blob) is not None, name


def test_the_newest_form_is_read_as_it_was_written() -> None:
    for name, form in FORMS.items():
        assert form.read(form.write(form.value)) == form.value, name


def test_no_recorded_field_or_call_has_changed() -> None:
    assert changed_lines() == [], "older processes rely on these: give a new field another number, and reserve the old"


def test_each_field_and_call_is_recorded() -> None:
    assert sorted(messages.lines()) == sorted(set(recorded_lines())), "run python -m tests.formats --write"


def test_all_records_and_all_files_of_messages_are_recorded() -> None:
    # access.proto has options of methods. They are on no wire.
    files = {path.stem for path in (ROOT / "proto/millwheel/v1").glob("*.proto")} - {"access"}
    assert {Path(file.name).stem for file in messages.FILES} == files
    records = [name for name in catalog_pb2.DESCRIPTOR.message_types_by_name if name.endswith("Record")]
    assert {f"message/{name}" for name in records} <= FORMS.keys()


def test_a_number_of_a_removed_field_must_be_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = next(line for line in messages.lines() if line.startswith("millwheel.v1.StreamLogRecord "))
    present = [line for line in messages.lines() if line != gone]
    monkeypatch.setattr(messages, "lines", lambda: iter(present))
    assert changed_lines() == [gone]
    monkeypatch.setattr(messages, "reserved_numbers", lambda: {gone.partition(":")[0]})
    assert changed_lines() == []


def test_each_stored_format_number_has_a_recorded_form() -> None:
    """A new name of a number of a stored format needs a sample in this folder, also in a module that has others."""
    stated = {
        f"{path.relative_to(ROOT).as_posix()} {name}"
        for folder in ("authority", "injectors", "master", "millwheel", "worker")
        for path in (ROOT / folder).rglob("*.py")
        if not path.is_symlink()
        for name in re.findall(r"^(_?(?:\w+_)?FORMAT(?:_VERSION)?): Final = \d", path.read_text(), re.MULTILINE)
    }
    assert stated == {
        "authority/journal.py _ENTRY_FORMAT",
        "authority/journal.py _PART_FORMAT",
        "millwheel/cli/output.py JSON_FORMAT",
        "millwheel/model/envelope.py DEFLATED_FORMAT",
        "millwheel/model/envelope.py FORMAT_VERSION",
        "millwheel/model/formats.py NEWEST_FORMAT",
        "millwheel/model/formats.py OLDEST_FORMAT",
        "millwheel/sdk/growing/codec.py _FORMAT",
        "millwheel/sdk/growing/nodes.py _FORMAT",
        "millwheel/snapshots/manifest.py SNAPSHOT_FORMAT",
        "millwheel/store/directory.py DIRECTORY_FORMAT",
        "worker/dedup/results.py FORMAT",
        "worker/dedup/results.py RANGES_FORMAT",
        "worker/interval/commits/divided.py _FORMAT",
        "worker/interval/entry.py FORMAT",
        "worker/interval/entry.py PANES_FORMAT",
        "worker/interval/entry.py RUNS_FORMAT",
        "worker/interval/entry.py TABLES_FORMAT",
        "worker/log/entry.py LOG_ENTRY_FORMAT",
    }, "add a sample of the new form to tests/formats, and its name here"
