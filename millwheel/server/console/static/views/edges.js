// The figures of a graph's edges: what flows along a stream, how long it takes, and up to which time it is complete.

import { html, useState } from "/vendor/htm-preact-standalone.js";
import { bytes, duration, lag, lagText, local, moment, rate, to } from "/format.js";
import { Table } from "/parts.js";
import { END_MARK } from "/views/layout.js";

const LATE_SECONDS = 300; // The limits of the Time view's bars.
const VERY_LATE_SECONDS = 3600;
const THINNEST = 1.4;
const THICKEST = 5;
const COLUMNS = [["from"], ["stream"], ["to"], ["records/s", true], ["bytes/s", true], ["latency", true], ["data lag", true], ["low watermark (UTC)"]];

/** Finds the figures of edges in one overview. */
export function edgeFigures(topology, overview) {
  const streams = new Map(overview.topologies.flatMap((one) => one.streams).map((one) => [one.name, one]));
  const all = new Map(overview.topologies.flatMap((one) => one.computations.map((row) => [`${one.name}/${row.name}`, row])));
  const row = (name) => all.get(`${topology.name}/${name}`);
  const behind = (watermark) => lag(overview.now_us, watermark) ?? -Infinity;
  return (edge) => {
    const stream = streams.get(edge.stream);
    const reader = row(edge.to);
    const flow = reader?.traffic.find((one) => one.stream === edge.stream);
    const source = edge.from.startsWith(END_MARK);
    // A stream of another topology is complete as far as the last of its writers is.
    const writers = (stream?.written_by ?? []).map((name) => all.get(name)?.watermark).filter(Boolean);
    const furthest = writers.sort((one, other) => behind(other) - behind(one))[0];
    const watermark = source ? stream?.watermark ?? furthest : row(edge.from)?.watermark;
    return {
      name: local(topology.name, edge.stream),
      from: source ? (stream?.injected ? "injectors" : stream?.written_by.join(", ") || "another topology") : edge.from,
      to: reader ? edge.to : stream?.log ? "its log" : "no reader",
      records: reader ? flow?.records_per_second ?? 0 : stream?.log?.records_per_second ?? null,
      bytes: reader ? flow?.bytes_per_second ?? 0 : null,
      latency: reader?.commit_latency_seconds || null,
      lag: lag(overview.now_us, watermark),
      lagText: lagText(overview.now_us, watermark),
      moment: watermark ? moment(watermark.low_watermark_us) : "not known",
    };
  };
}

/** How a line shows its figures: more records make it thicker, and the lag gives its colour. */
export const edgeWidth = ({ records }) => Math.min(THINNEST + 0.8 * Math.log10(1 + (records ?? 0)), THICKEST).toFixed(1);
export const edgeKind = ({ lag: seconds }) => (seconds > VERY_LATE_SECONDS ? "bad" : seconds > LATE_SECONDS ? "warn" : "");

/** All figures of an edge, in one line. */
export function edgeText(of) {
  return [
    `${of.name}, from ${of.from} to ${of.to}`,
    of.records !== null && `${rate(of.records)} records/s`,
    of.bytes !== null && `${bytes(of.bytes)}/s`,
    of.latency && `${duration(of.latency)} from receipt to commit`,
    `data lag ${of.lagText}`,
    `low watermark ${of.moment}`,
  ].filter(Boolean).join(" · ");
}

/** What stands on an edge. It opens the stream. `shown` is called with the edge while a pointer or the focus is on it. */
export function EdgeLabel({ edge, of, shown }) {
  return html`<a class=${`label ${edgeKind(of)}`} style=${{ left: `${edge.x}px`, top: `${edge.y}px` }} href=${to("streams", ...edge.stream.split("/"))}
    onPointerEnter=${() => shown(edge)} onPointerLeave=${() => shown(null)} onFocus=${() => shown(edge)} onBlur=${() => shown(null)}>
    ${edge.named && html`<b>${of.name}</b>`}
    <span>${of.records === null ? "not kept" : `${rate(of.records)}/s`}${of.latency ? ` · ${duration(of.latency)}` : ""}</span>
    <span>lag ${of.lagText}</span><span class="unseen">${edge.named ? "" : `${of.name}, `}from ${of.from} to ${of.to}, low watermark ${of.moment}</span></a>`;
}

/** The edges as a table, for the keyboard and screen readers. Its rows are made only while it is open. */
export function EdgeTable({ edges, figures }) {
  const [open, setOpen] = useState(false);
  return html`<details class="edge-table" onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary>The edges as a table</summary>
    ${open && html`<p class="muted">Latency: the mean time from receipt to commit at the reader, over the last seconds, of all its records. A rate is that of all writers of the stream.</p>
    <${Table} label="Edges" columns=${COLUMNS}>${edges.map((edge, index) => {
      const of = figures(edge);
      return html`<tr key=${index}><td>${of.from}</td><td><a href=${to("streams", ...edge.stream.split("/"))}><b>${of.name}</b></a>${edge.feedback ? html` <span class="muted">feedback</span>` : ""}</td><td>${of.to}</td>
        <td class="num">${of.records === null ? "" : rate(of.records)}</td><td class="num">${of.bytes === null ? "" : bytes(of.bytes)}</td>
        <td class="num">${of.latency ? duration(of.latency) : ""}</td><td class=${`num ${edgeKind(of)}`}>${of.lagText}</td><td class="mono fixed">${of.moment}</td></tr>`;
    })}</${Table}>`}</details>`;
}
