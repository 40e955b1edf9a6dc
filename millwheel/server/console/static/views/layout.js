// The layout of a topology's graph: computations and the ends of streams as nodes, streams as edges.

import dagre from "/vendor/dagre.js";
import { local } from "/format.js";

const MANY = 16; // From so many computations on, nodes are small and edges have no labels, so that all fit on a screen.
const LARGE = { node: { width: 212, height: 66 }, end: { width: 156, height: 46 }, labels: true, graph: { nodesep: 18, ranksep: 26, edgesep: 14 } };
const LABEL = { letter: 7, least: 106, most: 160, line: 15, margin: 6 }; // Pixels. A label has a line for its name, if it has one, and two of figures.
const SMALL = { node: { width: 142, height: 42 }, end: { width: 118, height: 24 }, labels: false, graph: { nodesep: 8, ranksep: 46, edgesep: 6 } };
export const END_MARK = "stream:"; // No computation has a colon in its name.

/** Nodes of the graph: [{id, kind, ...}]. Edges: [{from, to, stream, feedback}]. */
function shape(topology, sizes) {
  const nodes = topology.computations.map((one) => ({ id: one.name, kind: "computation", ...sizes.node }));
  const edges = [];
  const ends = new Map();
  const end = (stream, kind) => {
    ends.set(END_MARK + stream, { id: END_MARK + stream, kind, stream, ...sizes.end });
    return END_MARK + stream;
  };
  const writers = (stream) => topology.computations.filter((one) => one.outputs.includes(stream));
  const read = new Set();
  for (const one of topology.computations) {
    for (const { stream, feedback } of one.inputs) {
      read.add(stream);
      const from = writers(stream).map((writer) => writer.name);
      const declared = topology.streams.find((other) => other.name === stream);
      if (!from.length || declared?.injected) from.push(end(stream, declared?.injected ? "source" : "external"));
      for (const start of from) edges.push({ from: start, to: one.name, stream, feedback });
    }
  }
  for (const one of topology.computations) {
    for (const stream of one.outputs) if (!read.has(stream) && isShown(topology, stream, sizes)) edges.push({ from: one.name, to: end(stream, "sink"), stream });
  }
  return { nodes: [...nodes, ...ends.values()], edges };
}

/** A large graph leaves out the streams without a reader and without a log. */
const isShown = (topology, stream, sizes) => sizes === LARGE || topology.streams.some((one) => one.name === stream && one.read_by.length > 0);

/** The computations, each after those that it waits for. */
export function inOrder(topology) {
  const writers = new Map();
  for (const one of topology.computations) for (const stream of one.outputs) writers.set(stream, [...(writers.get(stream) ?? []), one]);
  const seen = new Set();
  const found = [];
  const visit = (one) => {
    if (seen.has(one.name)) return;
    seen.add(one.name);
    for (const { stream, feedback } of one.inputs) if (!feedback) (writers.get(stream) ?? []).forEach(visit);
    found.push(one);
  };
  topology.computations.forEach(visit);
  return found;
}

/** What the layout depends on, as a text. */
export const shapeKey = (topology) =>
  JSON.stringify(topology.computations.map((one) => [one.name, one.inputs.map((edge) => [edge.stream, edge.feedback]), one.outputs]));

function labelSize(name) {
  const width = Math.min(Math.max(name.length * LABEL.letter, LABEL.least), LABEL.most) + LABEL.margin;
  return { width, height: (name ? 3 : 2) * LABEL.line + LABEL.margin };
}

export function layout(topology) {
  const sizes = topology.computations.length < MANY ? LARGE : SMALL;
  const { nodes, edges } = shape(topology, sizes);
  const graph = new dagre.graphlib.Graph({ multigraph: true });
  graph.setGraph({ rankdir: "LR", marginx: 14, marginy: 14, ...sizes.graph });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const node of nodes) graph.setNode(node.id, { width: node.width, height: node.height });
  edges.forEach((edge, index) => {
    // The end of a stream has its name already.
    edge.named = !edge.from.startsWith(END_MARK) && !edge.to.startsWith(END_MARK);
    const size = sizes.labels ? labelSize(edge.named ? local(topology.name, edge.stream) : "") : { width: 0, height: 0 };
    graph.setEdge(edge.from, edge.to, { ...size, labelpos: "c" }, String(index));
  });
  dagre.layout(graph);
  const { width, height } = graph.graph();
  return {
    width,
    height,
    small: sizes === SMALL,
    nodes: nodes.map((node) => ({ ...node, ...graph.node(node.id) })),
    edges: edges.map((edge, index) => ({ ...edge, ...graph.edge(edge.from, edge.to, String(index)) })),
  };
}

/** A smooth line through the points of an edge. */
export function line(points) {
  const [first, ...rest] = points;
  let path = `M${first.x} ${first.y}`;
  for (let at = 0; at < rest.length - 1; at += 1) {
    const [here, next] = [rest[at], rest[at + 1]];
    const last = at === rest.length - 2;
    path += `Q${here.x} ${here.y} ${last ? next.x : (here.x + next.x) / 2} ${last ? next.y : (here.y + next.y) / 2}`;
  }
  return rest.length === 1 ? `${path}L${rest[0].x} ${rest[0].y}` : path;
}
