"""Draws a topology: as a text tree, for Graphviz, or for Mermaid."""

from __future__ import annotations

import json
from collections.abc import Iterator

from millwheel.model.catalog import outputs_of
from millwheel.model.stream_names import local_name
from millwheel.rpc.v1 import topology_pb2 as specs

__all__ = ["key_text", "to_dot", "to_mermaid", "to_text"]


def key_text(key: specs.KeySpec) -> str:
    """Return for people how an input is keyed: its key function, or its fields."""
    return key.function or ", ".join(key.fields)


def _roots(spec: specs.TopologySpec) -> list[str]:
    """Return the streams that come from outside the topology, or all streams that it reads if there are none."""
    made = {output for computation in spec.computations for output in outputs_of(computation)}
    read = {edge.stream for computation in spec.computations for edge in computation.inputs}
    sources = [stream.name for stream in spec.streams if stream.injected]
    return list(dict.fromkeys([*sources, *sorted(read - made)])) or sorted(read)


def _label(spec: specs.TopologySpec, name: str) -> str:
    declared = next((stream for stream in spec.streams if stream.name == name), specs.StreamSpec())
    made = any(name in outputs_of(computation) for computation in spec.computations)
    kind = "source" if declared.injected else "" if made else "external"
    details = ", ".join(part for part in (kind, declared.record_type) if part)
    shown = local_name(spec.name, name)
    return f"{shown} ({details})" if details else shown


def to_text(spec: specs.TopologySpec) -> str:
    """Draw a tree that starts at the sources. A computation with several inputs is expanded only at its first place."""
    lines = [f"topology {spec.name}"]
    shown: set[str] = set()
    for root in _roots(spec):
        lines.append(_label(spec, root))
        lines += _below(spec, root, shown)
    return "\n".join(lines)


def _below(spec: specs.TopologySpec, stream: str, shown: set[str]) -> Iterator[str]:
    readers = [(one, edge) for one in spec.computations for edge in one.inputs if edge.stream == stream]
    for index, (computation, edge) in enumerate(readers):
        last = index == len(readers) - 1
        notes = f"  key: {key_text(edge.key)}" + ("  feedback" if edge.feedback else "")
        again = computation.name in shown
        yield f"{'└─' if last else '├─'} [{computation.name}]{notes}{'  (above)' if again else ''}"
        if again:
            continue
        shown.add(computation.name)
        indent = "   " if last else "│  "
        outputs = outputs_of(computation)
        for position, output in enumerate(outputs):
            final = position == len(outputs) - 1
            yield f"{indent}{'└─' if final else '├─'} {_label(spec, output)}"
            for line in _below(spec, output, shown):
                yield f"{indent}{'   ' if final else '│  '}{line}"


def _edges(spec: specs.TopologySpec) -> Iterator[tuple[str, str, str]]:
    """Yield the start, end and label of each edge. Streams are ``s:name``, computations ``c:name``."""
    for computation in spec.computations:
        for edge in computation.inputs:
            note = " (feedback)" if edge.feedback else ""
            yield f"s:{edge.stream}", f"c:{computation.name}", key_text(edge.key) + note
        for output in outputs_of(computation):
            yield f"c:{computation.name}", f"s:{output}", ""


def to_dot(spec: specs.TopologySpec) -> str:
    """Draw for Graphviz: ``millwheel topology graph ... -o dot | dot -Tsvg``."""
    lines = [f"digraph {_quoted(spec.name)} {{", "  rankdir=LR;"]
    for node in _nodes(spec):
        shape = "box" if node.startswith("c:") else "ellipse"
        label = node[2:] if node.startswith("c:") else _label(spec, node[2:])
        lines.append(f"  {_quoted(node)} [shape={shape}, label={_quoted(label)}];")
    for start, end, label in _edges(spec):
        tail = f" [label={_quoted(label)}]" if label else ""
        lines.append(f"  {_quoted(start)} -> {_quoted(end)}{tail};")
    return "\n".join([*lines, "}"])


def to_mermaid(spec: specs.TopologySpec) -> str:
    """Draw for Markdown pages that support Mermaid."""
    ids = {node: f"n{index}" for index, node in enumerate(_nodes(spec))}
    lines = ["flowchart LR"]
    for node, name in ids.items():
        label = (node[2:] if node.startswith("c:") else _label(spec, node[2:])).replace('"', "#quot;")
        lines.append(f'  {name}["{label}"]' if node.startswith("c:") else f'  {name}(["{label}"])')
    for start, end, label in _edges(spec):
        text = f'|"{label.replace(chr(34), "#quot;")}"|' if label else ""
        lines.append(f"  {ids[start]} -->{text} {ids[end]}")
    return "\n".join(lines)


def _nodes(spec: specs.TopologySpec) -> list[str]:
    ends = [end for start, end, _ in _edges(spec)]
    starts = [start for start, _, _ in _edges(spec)]
    return list(dict.fromkeys([*starts, *ends]))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
