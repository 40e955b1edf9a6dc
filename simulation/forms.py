"""The part of a simulated topology that updates change: its successive forms (section 4.1).

It has three computations. ``base`` never changes. ``middle`` runs in parallel with it: updates change its key, its
inputs and its code. They also remove it while records are in flight, and bring it back under its name. ``behind``
consumes both. Updates change its key, and whether it also reads the first stream directly. Each incarnation of
``middle``, and each version of its code, signs its steps with a different name: ``middle#2/3`` is the third version of
the code in the second incarnation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from simulation.blocks import plain_node

__all__ = ["BASE", "BEHIND", "BETWEEN", "MIDDLE", "SINK", "Form", "code_of", "form_nodes", "life_of", "next_form"]

BASE: Final = "base"
MIDDLE: Final = "middle"
BEHIND: Final = "behind"
BETWEEN: Final = "v0"
"""The stream from ``base`` and ``middle`` to ``behind``."""
SINK: Final = "v1"
_CODES: Final = ("count", "recount", "tally")
"""The versions of the code of a ``middle`` that counts; each migrates the states of the earlier versions."""
_GROWING: Final = ("keep", "keep marked", "keep twice")
"""The same of a ``middle`` whose state grows."""


@dataclass(frozen=True, slots=True)
class Form:
    """What one version of the topology has.

    ``stream``: the input of ``base``. ``lives``: the number of incarnations of ``middle`` so far; ``present``: whether
    it exists now. ``inputs``, ``key`` and ``code`` are those of ``middle``. It counts records, also in a state that
    grows (``growing``), or collects windows (``windows``).
    """

    stream: str
    inputs: tuple[str, ...]
    key: str = "a"
    code: int = 0
    windows: bool = False
    growing: bool = False
    lives: int = 1
    present: bool = True
    behind_key: str = "b"
    direct: bool = False
    """Whether ``behind`` also reads ``stream``."""
    rekeyed: bool = True
    """Whether keys of ``stream`` and the other inputs may change.

    See :func:`simulation.combined_options.changing_forms`.
    """

    @property
    def edges(self) -> dict[str, dict[str, str]]:
        """By stream: the computations that consume it, and the field that is the key there."""
        found: dict[str, dict[str, str]] = {BETWEEN: {BEHIND: self.behind_key}}
        found.setdefault(self.stream, {})[BASE] = "a"
        if self.direct:
            found[self.stream][BEHIND] = self.behind_key
        for stream in self.inputs if self.present else ():
            found.setdefault(stream, {})[MIDDLE] = self.key
        return found

    def fields_of(self, stream: str) -> dict[str, str]:
        """The consumers of one stream, as in ``edges``."""
        return self.edges.get(stream, {})


def form_nodes(form: Form) -> list[dict[str, Any]]:
    """The nodes of a form, for :func:`simulation.blocks.assemble`."""

    def node(name: str, kind: str, inputs: dict[str, str], output: str, **more: Any) -> dict[str, Any]:
        return {"name": name, "kind": kind, "inputs": inputs, "outputs": [output]} | plain_node() | more

    reads = dict.fromkeys([BETWEEN, form.stream] if form.direct else [BETWEEN], form.behind_key)
    nodes = [
        node(BASE, "count", {form.stream: "a"}, BETWEEN),
        node(BEHIND, "count", reads, SINK, joins=[form.stream]),
    ]
    if form.present:
        kind = "window" if form.windows else (_GROWING if form.growing else _CODES)[form.code]
        # Records of another stream may be behind the stream that ``behind`` waits for.
        apart = {"belated": True} if set(form.inputs) != {form.stream} else {}
        more: dict[str, Any] = {"arguments": [1_000_000] if form.windows else [], "joins": [*form.inputs], **apart}
        signed = f"{MIDDLE}#{form.lives}/{form.code}"
        nodes.append(node(MIDDLE, kind, dict.fromkeys(form.inputs, form.key), BETWEEN, signed=signed, **more))
    return nodes


def next_form(form: Form, chance: Random, streams: tuple[str, ...]) -> Form:
    """Another form, with one or two differences. ``streams``: those that ``middle`` may read."""
    if not form.present and chance.random() < 0.7:
        # A new incarnation may have any key: records for the former incarnation have no effect in it.
        form = replace(form, present=True, lives=form.lives + 1, code=0, key=chance.choice("ab"))
        return _changed(form, chance, streams, ("inputs", "behind"))
    kinds = ("leave", "leave", "key", "inputs", "code", "behind", "direct") if form.present else ("behind", "direct")
    for _ in range(chance.choice((1, 2))):
        form = _changed(form, chance, streams, kinds)
    return form


def _changed(form: Form, chance: Random, streams: tuple[str, ...], kinds: tuple[str, ...]) -> Form:
    what = chance.choice(kinds)
    if what == "leave":
        return replace(form, present=False)
    if what == "key":
        return replace(form, key=_other(form.key)) if form.rekeyed else form
    if what == "inputs":
        choices = [streams[:1], streams, streams[1:]] if len(streams) > 1 else [streams]
        return replace(form, inputs=chance.choice(choices))
    if what == "code":
        return replace(form, code=0 if form.windows else min(form.code + 1, len(_CODES) - 1))
    if what == "behind":
        return replace(form, behind_key=_other(form.behind_key)) if form.rekeyed else form
    return replace(form, direct=not form.direct)


def _other(field: str) -> str:
    return "b" if field == "a" else "a"


def life_of(computation: str) -> str:
    """A step's computation without the version of its code."""
    return computation.partition("/")[0]


def code_of(computation: str) -> int:
    """The version of the code that made a step; 0 if the name has none."""
    return int(computation.partition("/")[2] or 0)
