"""The figures of docs/performance.md come from docs/figures, and are readable on light and on dark pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.figures.__main__ import measure
from bench.figures.drawing import COLOURS, INK, PLOTS, draw
from bench.figures.measured import Kept, Origin, load, load_all, rows_of, save
from bench.figures.page import filled
from bench.figures.parts import PARTS, Part
from bench.figures.tables import tables
from bench.peers.systems import all_peers
from bench.readings import read
from bench.report import Figure, Series, write_figures

ROOT = Path(__file__).parents[2]
FOLDER, PAGE = ROOT / "docs" / "figures", ROOT / "docs" / "performance.md"
ORIGIN = Origin("2026-01-01", "abc", "2 cores", "3.11", 0.1)
HOW = "`make bench-full ARGS=--draw` puts the figures into the page"


def test_the_page_has_the_tables_of_its_figures() -> None:
    page = PAGE.read_text()
    assert filled(page, tables(load_all(FOLDER))) == page, HOW


def test_each_place_of_the_page_has_a_table() -> None:
    places = set(re.findall(r"<!-- table ([\w.-]+) -->", PAGE.read_text()))
    assert places == set(tables(load_all(FOLDER)))


def test_the_plots_are_those_of_the_measured_figures(tmp_path: Path) -> None:
    kept = load_all(FOLDER)
    draw({name: one.readings(name) for name, one in kept.items()}, tmp_path)
    drawn = {file.name for file in tmp_path.iterdir()}
    assert drawn == {f"{name}.svg" for name in PLOTS} == {file.name for file in FOLDER.glob("*.svg")}
    for name in drawn:
        assert _labels(tmp_path / name) == _labels(FOLDER / name), HOW


def _labels(file: Path) -> list[str]:
    """The texts of a plot. They have its medians, and do not depend on the version of the library as lines do."""
    return sorted(re.findall(r"<text[^>]*>([^<]+)</text>", file.read_text()))


@pytest.mark.parametrize("colour", [INK, *COLOURS])
def test_colours_have_contrast_on_light_and_dark_pages(colour: str) -> None:
    for page in ("#ffffff", "#0d1117"):
        light, dark = sorted((_luminance(colour), _luminance(page)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4, page


def _luminance(colour: str) -> float:
    """Relative luminance, as the accessibility guidelines of the web define it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_a_file_of_figures_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_figures([Figure("a", 1.5, "ms", (1.5, 2.0)), Series("b", "ms", ((1.0, 2.0),))], tmp_path / "written.json")
    found = read(tmp_path / "written.json")
    assert (found.value("a"), found.runs["a"], found.points("b")) == (1.5, [1.5, 2.0], [(1.0, 2.0)])
    rows = rows_of("count", (tmp_path / "written.json").read_bytes())
    kept = Kept(ORIGIN, rows)
    save(kept, tmp_path / "kept.json")
    assert load(tmp_path / "kept.json") == kept
    assert read(tmp_path / "kept.json").figures == found.figures
    with pytest.raises(KeyError, match="no figure c"):
        found.value("c")


def test_a_file_of_another_form_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"rows": 1}')
    with pytest.raises(ValueError, match=r"x\.json is no file of figures"):
        load(tmp_path / "x.json")
    with pytest.raises(ValueError, match=r"x\.json is no file of figures"):
        read(tmp_path / "x.json")


def test_each_system_that_is_measured_has_a_row() -> None:
    parts = ("records_per_s", "first_result_s", "cpu_us", "peak_mb")
    names = [peer.name for peer in all_peers({}, {})]
    rows = [{"name": f"peers.{name}.{part}", "value": 1.0} for name in names for part in parts]
    lines = tables({"peers": Kept(ORIGIN, rows)})["peers"].splitlines()[2:]
    first = [line.split(" | ")[0] for line in lines]
    assert len(set(first)) == len(names), "a row of bench/figures/tables.py is missing, or two have the same words"


def test_a_table_that_was_not_measured_says_so() -> None:
    assert "Not measured yet." in filled("<!-- table a -->\n<!-- end -->", {})


@pytest.mark.parametrize(("command", "limit"), [("raise SystemExit(1)", 30.0), ("import time; time.sleep(600)", 0.2)])
def test_a_part_that_fails_leaves_its_earlier_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, limit: float
) -> None:
    (tmp_path / "failing.py").write_text(command)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "failing.json").write_text("earlier")
    part = Part("failing", ("failing",), limit)
    assert not measure(part, tmp_path, ORIGIN, quick=False, pure=False)
    assert (tmp_path / "failing.json").read_text() == "earlier"


def test_each_part_is_a_module() -> None:
    folders = {part.command[0] for part in PARTS if (ROOT / part.command[0].replace(".", "/")).is_dir()}
    assert {part.command[0] for part in PARTS} <= folders | _modules()
    assert len({part.name for part in PARTS}) == len(PARTS)


def _modules() -> set[str]:
    return {f"bench.{file.stem}" for file in (ROOT / "bench").glob("*.py")}
