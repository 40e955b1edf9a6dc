// The streams of all topologies: what they carry, who writes and reads them, and their logs.

import { html } from "/vendor/htm-preact-standalone.js";
import { bytes, rate } from "/format.js";
import { Heading, Table } from "/parts.js";

const COLUMNS = [["stream"], ["type"], ["from"], ["read by"], ["log"], ["log records/s", true], ["log memory", true]];

export function Streams({ overview }) {
  const streams = overview.topologies.flatMap((one) => one.streams);
  return html`
    <${Heading}>Streams</${Heading}>
    ${streams.length === 0 ? html`<p class="empty">No streams.</p>` : html`<${Table} columns=${COLUMNS} label="Streams">
      ${streams.map((one) => html`<tr key=${one.name}>
        <td><b>${one.name}</b></td><td><code>${one.record_type}</code></td>
        <td>${[...(one.injected ? ["injectors"] : []), ...one.written_by].join(", ")}</td>
        <td>${one.read_by.join(", ") || html`<span class="muted">none</span>`}</td>
        <td>${one.log ? (one.log.worker ? `at ${one.log.worker}` : html`<span class="bad">without an owner</span>`) : html`<span class="muted">not kept</span>`}</td>
        <td class="num">${one.log ? rate(one.log.records_per_second) : ""}</td>
        <td class="num">${one.log ? bytes(one.log.cached_bytes) : ""}</td></tr>`)}</${Table}>`}`;
}
