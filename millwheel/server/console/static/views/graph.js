// A topology as a graph, and the computation that is selected in it.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "/vendor/htm-preact-standalone.js";
import { bytes, count, cpu, duration, lagText, local, moment, plural, rate, stateName, to } from "/format.js";
import { Heading, HealthProblems, Hold, Problems, problemsOf, Prose, Spark, Table, useEscape } from "/parts.js";
import { ConnectorKeys, partText } from "/views/connectors.js";
import { EdgeLabel, EdgeTable, edgeFigures, edgeKind, edgeText, edgeWidth } from "/views/edges.js";
import { layout, line, shapeKey } from "/views/layout.js";
import { short } from "/views/topologies.js";

const SMALLEST = 0.85; // Below this scale the names cannot be read: the graph scrolls instead.

const at = (node) => ({
  left: `${node.x - node.width / 2}px`, top: `${node.y - node.height / 2}px`, width: `${node.width}px`, height: `${node.height}px`,
});

/** A lag in its largest unit: a node has little room, and the title has all of it. */
const brief = (text) => text.split(" ").slice(0, 2).join(" ");

/** Marks the parts of sources and sinks. */
const Part = ({ one }) => partText(one) && html` <i class=${`part ${["source", "sink"].includes(partText(one)) ? "ends" : ""}`}>${partText(one)}</i>`;

/** How the records of a computation run, and why not by columns. Empty: no worker has said it. */
function columnText(one) {
  const use = one.columns;
  if (!use) return "";
  if (use.by_records) return `by records: ${use.by_records}`;
  const values = use.inputs.filter((input) => input.by_values).map((input) => `tables of ${input.stream} row by row: ${input.by_values}`);
  const tables = use.in_batches && use.inputs.length && !values.length ? ["tables by columns"] : values;
  return [use.in_batches ? "many at a time, by process_batch" : "by columns", ...tables].join("; ");
}

/** The share of the records that went by columns, since the workers began. Empty: none ran, or none may. */
function columnShare(one) {
  const hook = one.hooks.find((other) => other.hook === "process_record");
  if (!one.columns || one.columns.by_records || !Number(hook?.calls)) return "";
  return `${((100 * Number(hook.by_columns)) / Number(hook.calls)).toFixed(1)} % so far`;
}

/** Marks a computation whose records run by columns. */
const Columns = ({ one }) => one.columns && !one.columns.in_batches && !one.columns.by_records && html` <i class="part" title=${columnText(one)}>columns</i>`;

function Computation({ node, one, topology, now, samples, selected, small, troubled }) {
  const bad = one.failures || troubled ? "failing" : "";
  const lags = `data lag ${lagText(now, one.watermark)}, system lag ${duration(one.system_lag_seconds)}`;
  if (small) {
    return html`<a class=${`node small ${bad}`} style=${at(node)} href=${to("topology", topology, one.name)}
      aria-current=${selected ? "true" : null} title=${one.failures ? one.failures.text : lags}>
      <b>${one.name}<${Part} one=${one} /></b>
      ${one.failures ? html`<span class="fault">${short(one.failures)}</span>` : html`<span><em>${rate(one.records_per_second)}/s</em> ${lagText(now, one.watermark)}</span>`}
    </a>`;
  }
  return html`<a class=${`node ${bad}`} style=${at(node)} href=${to("topology", topology, one.name)}
    aria-current=${selected ? "true" : null} title=${one.failures ? one.failures.text : [`${one.implementation}: ${lags}`, columnText(one)].filter(Boolean).join("; ")}>
    <b>${one.name}<${Part} one=${one} /><${Columns} one=${one} /></b>
    <span><em>${rate(one.records_per_second)} rec/s</em><${Spark} samples=${samples} /></span>
    ${one.failures
      ? html`<span class="fault">${short(one.failures)}</span>`
      : html`<span>data <em>${brief(lagText(now, one.watermark))}</em> system <em>${brief(duration(one.system_lag_seconds))}</em></span>`}
  </a>`;
}

function End({ node, topology, stream, injectors, now, small }) {
  const writing = injectors.filter((one) => one.stream === node.stream && !one.retired && !one.finished).length;
  const full = lagText(now, stream?.watermark);
  const text = {
    source: () => (writing ? `${plural(writing, "injector")} · lag ${full}` : "no injector"),
    external: () => "of another topology",
    sink: () => (stream?.log ? `kept · ${rate(stream.log.records_per_second)} rec/s` : "without a reader"),
  }[node.kind]();
  return html`<div class=${`node end ${small ? "small" : ""}`} style=${at(node)} title=${`${node.stream}: ${text}`}><b>${local(topology, node.stream)}</b>${!small && html`<span>${text.replace(`lag ${full}`, `lag ${brief(full)}`)}</span>`}</div>`;
}

function Board({ topology, overview, history, selected, troubled }) {
  const drawn = useMemo(() => layout(topology), [topology.name, shapeKey(topology)]);
  const [zoom, setZoom] = useState(0); // 0: fit the width.
  const [width, setWidth] = useState(0);
  const [pointed, setPointed] = useState(null); // The edge that has the pointer or the focus.
  const board = useRef();
  useLayoutEffect(() => {
    const watcher = new ResizeObserver(() => setWidth(board.current.clientWidth));
    watcher.observe(board.current);
    return () => watcher.disconnect();
  }, []);
  useEffect(() => {
    board.current.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [selected, width]);
  const fit = width ? Math.max(Math.min((width - 2) / drawn.width, 1), SMALLEST) : 1;
  const scale = zoom || fit;
  const streams = new Map(overview.topologies.flatMap((one) => one.streams).map((one) => [one.name, one]));
  const rows = new Map(topology.computations.map((one) => [one.name, one]));
  const now = overview.now_us;
  const figures = edgeFigures(topology, overview);
  const text = drawn.edges.includes(pointed) ? edgeText(figures(pointed)) : drawn.small
    ? "A computation has its records/s and its data lag. An edge is thick if much flows, amber if it is 5 minutes behind, red if an hour. A pointer on it shows more."
    : "An edge has its records/s, the time from receipt to commit, and its data lag. It is amber if it is 5 minutes behind, red if an hour.";
  return html`<div>
    <div class="head tools" role="toolbar" aria-label="Zoom">
      <button onClick=${() => setZoom(Math.min(scale * 1.25, 2))} aria-label="Larger">+</button>
      <button onClick=${() => setZoom(Math.max(scale / 1.25, 0.2))} aria-label="Smaller">−</button>
      <button onClick=${() => setZoom(0)}>Fit</button>
      <span class=${`edge-text ${drawn.edges.includes(pointed) ? "" : "muted"}`}>${text}</span>
    </div>
    <div class="board" ref=${board} tabindex="0" role="region" aria-label="Graph">
      <div style=${{ width: `${drawn.width * scale}px`, height: `${drawn.height * scale}px` }}>
      <div class="canvas" style=${{ width: `${drawn.width}px`, height: `${drawn.height}px`, transform: `scale(${scale})` }}>
        <svg class="edges" width=${drawn.width} height=${drawn.height} aria-hidden="true">
          <defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" markerUnits="userSpaceOnUse" orient="auto"><path class="tip" d="M0 0 8 4 0 8z" /></marker></defs>
          ${drawn.edges.map((edge, index) => {
            const of = figures(edge);
            return html`<g key=${index} onPointerEnter=${() => setPointed(edge)} onPointerLeave=${() => setPointed(null)}>
              <path class=${`edge ${edge.feedback ? "feedback" : ""} ${edgeKind(of)} ${edge === pointed ? "pointed" : ""}`} stroke-width=${edgeWidth(of)} d=${line(edge.points)} marker-end="url(#tip)" />
              <path class="reach" d=${line(edge.points)} /></g>`;
          })}
        </svg>
        ${!drawn.small && drawn.edges.map((edge) => html`<${EdgeLabel} key=${`${edge.from} ${edge.stream} ${edge.to}`} edge=${edge} of=${figures(edge)} shown=${setPointed} />`)}
        ${drawn.nodes.map((node) => (node.kind === "computation"
          ? html`<${Computation} key=${node.id} node=${node} one=${rows.get(node.id)} topology=${topology.name} now=${now} samples=${history.get(`${topology.name}/${node.id}`)} selected=${node.id === selected} troubled=${troubled.has(node.id)} small=${drawn.small} />`
          : html`<${End} key=${node.id} node=${node} topology=${topology.name} stream=${streams.get(node.stream)} injectors=${overview.injectors} now=${now} small=${drawn.small} />`))}
      </div></div>
    </div>
    <${EdgeTable} edges=${drawn.edges} figures=${figures} /></div>`;
}

function Inspector({ topology, one, now, samples }) {
  const rows = [
    ["code", html`<code>${one.implementation}</code>`],
    ["records/s", html`<${Spark} samples=${samples} /> ${rate(one.records_per_second)}`],
    ["receipt to commit", one.commit_latency_seconds ? duration(one.commit_latency_seconds) : ""],
    ["busy", cpu(one.busy)],
    ["data lag", lagText(now, one.watermark)],
    ["system lag", duration(one.system_lag_seconds)],
    ["queued records", count(one.queued_records)],
    ["productions without ACK", count(one.pending_productions)],
    ["late · dropped", `${count(one.late)} · ${count(one.dropped)}`],
    ["dead letters", count(one.dead_letters)],
    ["records run", [columnText(one), columnShare(one)].filter(Boolean).join(", ")],
    ["keys in memory", `${count(one.keys)}, ${bytes(one.cached_bytes)}`],
    ["intervals", one.without_owner ? html`<span class="bad">${one.intervals}, ${one.without_owner} without owner</span>` : one.intervals],
    ["workers", one.workers.join(", ") || "none"],
  ];
  const received = new Map(one.traffic.map((flow) => [flow.stream, flow.records_per_second]));
  return html`<aside class="inspector" aria-label=${`Computation ${one.name}`}>
    <h2>${one.name}<${Part} one=${one} /></h2>
    ${one.failures && html`<p class="fault-text"><${Prose} text=${one.failures.text} /></p>`}
    <${ConnectorKeys} topology=${topology} one=${one} now=${now} narrow=${true} />
    <dl>${rows.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>
    <h2>Low watermark <span class="muted">${one.watermark ? moment(one.watermark.low_watermark_us) : "not known"}</span></h2>
    <${Hold} topology=${topology} computation=${one.name} shown=${one.failures ? `computation ${topology}/${one.name}:` : ""} />
    <h2>Inputs and outputs</h2>
    <dl>${one.inputs.map((edge) => html`<dt>${local(topology, edge.stream)}</dt><dd>${rate(received.get(edge.stream) ?? 0)}/s, key ${edge.key?.function || edge.key?.fields.join(", ")}${edge.feedback ? ", feedback" : ""}</dd>`)}
      ${one.outputs.map((stream) => html`<dt>→ ${local(topology, stream)}</dt><dd></dd>`)}</dl>
    ${one.hooks.length > 0 && html`<h2>Hooks</h2><${Table} label="Hooks" columns=${[["hook"], ["calls", true], ["mean", true], ["failures", true]]}>
      ${one.hooks.map((hook) => html`<tr key=${hook.hook}><td>${hook.hook}</td><td class="num">${count(hook.calls)}</td>
        <td class="num">${Number(hook.calls) ? duration(hook.seconds / Number(hook.calls)) : ""}</td>
        <td class=${`num ${Number(hook.failures) ? "bad" : ""}`}>${count(hook.failures)}</td></tr>`)}</${Table}>`}
  </aside>`;
}

/** The version, and when it was submitted. A record of an earlier release has only the time of the first version. */
function versionText({ version, version_at_us: at, submitted_at_us: first }) {
  const since = `first submitted ${moment(first).slice(0, 16)} UTC`;
  if (at === "0") return `version ${version}, ${since}`;
  return `version ${version}, submitted ${moment(at).slice(0, 16)} UTC${at === first ? "" : `, ${since}`}`;
}

export function Graph({ name, selected, overview, history }) {
  const topology = overview.topologies.find((one) => one.name === name);
  useEscape(selected && to("topology", name));
  if (!topology) return html`<p class="empty">There is no topology ${name} any more. <a href="#/topologies">All topologies</a></p>`;
  const one = topology.computations.find((other) => other.name === selected);
  const problems = problemsOf(overview.health).filter((other) => other.topology === name);
  const troubled = new Set(problems.map((other) => other.computation));
  // The inspector shows the failure of its computation. A failure that needs no operator yet is no problem of health.
  const about = (other) => other.topology === name && !(one?.failures && other.computation === one.name);
  const failing = topology.computations.filter((other) => other.failures && other !== one && !troubled.has(other.name)).map((other) => other.failures.text);
  return html`
    <${Heading} aside=${versionText(topology)}>
      <a class="crumb" href="#/topologies">Topologies /</a> ${name} <span class="crumb">${stateName(topology.state)}</span></${Heading}>
    <${HealthProblems} health=${overview.health} about=${about} />
    <${Problems} title="Failing hooks" texts=${failing} />
    <${Problems} title="Waits for" texts=${topology.waiting_for} />
    <div class=${one ? "split" : ""}>
      <${Board} topology=${topology} overview=${overview} history=${history} selected=${selected} troubled=${troubled} />
      ${one && html`<${Inspector} topology=${name} one=${one} now=${overview.now_us} samples=${history.get(`${name}/${one.name}`)} />`}
    </div>`;
}
