// The injector processes of all streams, those furthest behind first.

import { html } from "/vendor/htm-preact-standalone.js";
import { lag, lagText, moment } from "/format.js";
import { Heading, Table } from "/parts.js";

const COLUMNS = [["stream"], ["process"], ["state"], ["low watermark (UTC)"], ["data lag", true]];

const state = (one) => (one.retired ? "retired" : one.finished ? "finished" : one.idle ? "idle" : "injecting");

export function Injectors({ overview }) {
  const now = overview.now_us;
  const rows = [...overview.injectors].sort((one, other) => (lag(now, other.watermark_us) ?? -Infinity) - (lag(now, one.watermark_us) ?? -Infinity));
  return html`
    <${Heading}>Injectors</${Heading}>
    ${rows.length === 0 ? html`<p class="empty">No process has injected yet. Try <code>millwheel inject file STREAM FILE</code></p>` : html`
      <${Table} columns=${COLUMNS} label="Injector processes">${rows.map((one) => html`<tr key=${`${one.stream} ${one.process}`}>
        <td>${one.stream}</td><td><b>${one.process}</b></td><td class=${state(one) === "injecting" ? "good" : "muted"}>${state(one)}</td>
        <td class="mono fixed">${moment(one.watermark_us)}</td><td class="num">${lagText(now, one.watermark_us)}</td></tr>`)}</${Table}>`}`;
}
