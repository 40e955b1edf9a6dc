// The injector processes of all streams, those furthest behind first.

import { html } from "/vendor/htm-preact-standalone.js";
import { lagText, moment } from "/format.js";
import { Heading, Table } from "/parts.js";

const COLUMNS = [["stream"], ["process"], ["state"], ["low watermark (UTC)"], ["data lag", true]];

/** What a process does, as the command line has it. */
export const state = (one) => (one.retired ? "retired" : one.finished ? "finished" : one.idle ? "idle" : "active");

export function Injectors({ overview }) {
  const now = overview.now_us;
  const rows = [...overview.injectors].sort((one, other) => Boolean(one.retired) - Boolean(other.retired) || Number(one.watermark_us) - Number(other.watermark_us));
  return html`
    <${Heading}>Injectors</${Heading}>
    ${rows.length === 0 ? html`<p class="empty">No process has injected yet. Try <code>millwheel inject file STREAM FILE</code></p>` : html`
      <${Table} columns=${COLUMNS} label="Injector processes">${rows.map((one) => html`<tr key=${`${one.stream} ${one.process}`}>
        <td>${one.stream}</td><td><b>${one.process}</b></td><td class=${state(one) === "active" ? "good" : "muted"}>${state(one)}</td>
        <td class="mono fixed">${moment(one.watermark_us)}</td><td class="num">${lagText(now, one.watermark_us)}</td></tr>`)}</${Table}>`}`;
}
