"""A percentile watermark is the minimum over a computation and everything upstream of it (7.2)."""

from __future__ import annotations

import pytest

from millwheel.client.percentiles import basis_points, upstream_of
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import topology_pb2 as specs

RUNNING = catalog.TOPOLOGY_STATE_RUNNING


def record(
    name: str, source: str, *computations: tuple[str, list[str], list[str]], state: int = RUNNING
) -> catalog.TopologyRecord:
    """A topology whose computations are (name, inputs, outputs); inputs that begin with "~" are feedback."""
    spec = specs.TopologySpec(name=name, streams=[specs.StreamSpec(name=source, injected=True)])
    for computation, inputs, outputs in computations:
        edges = [specs.InputSpec(stream=one.removeprefix("~"), feedback=one.startswith("~")) for one in inputs]
        spec.computations.add(name=computation, inputs=edges, outputs=outputs)
    incarnations = {one.name: f"{one.name}.1" for one in spec.computations}
    return catalog.TopologyRecord(spec=spec, state=state, incarnations=incarnations)  # type: ignore[arg-type]


@pytest.mark.paper(section="7.2")
def test_upstream_is_followed_across_topologies_but_not_feedback() -> None:
    known = [
        record("one", "clicks", ("counter", ["clicks"], ["counts"])),
        record("two", "models", ("joiner", ["counts", "models", "~again"], ["out"]), ("looper", ["out"], ["again"])),
        record("gone", "old", ("writer", ["old"], ["counts"]), state=catalog.TOPOLOGY_STATE_CANCELLED),
    ]
    assert upstream_of(known, "counter.1") == ["counter.1", "injector/clicks"]
    assert set(upstream_of(known, "looper.1")) == {
        "looper.1", "joiner.1", "counter.1", "injector/clicks", "injector/models",
    }  # fmt: skip
    assert upstream_of(known, "injector/models") == ["injector/models"]


@pytest.mark.parametrize(("percentile", "points"), [(99, 9_900), (99.9, 9_990), (0.01, 1), (100, 10_000)])
def test_percentiles_have_two_decimals(percentile: float, points: int) -> None:
    assert basis_points(percentile) == points


@pytest.mark.parametrize("percentile", [0, -1, 100.01, 0.001])
def test_what_is_no_percentile_is_refused(percentile: float) -> None:
    with pytest.raises(ValueError, match="percentile"):
        basis_points(percentile)
