// Low watermarks: of each source and computation, how far behind, and what holds it.

import { html } from "/vendor/htm-preact-standalone.js";
import { duration, lag, lagText, local, moment, to } from "/format.js";
import { Heading, Hold, Table } from "/parts.js";
import { inOrder } from "/views/layout.js";
import { short } from "/views/topologies.js";

const COLUMNS = [["what"], ["low watermark (UTC)"], ["data lag", true], ["a second … a day"], ["system lag", true], ["held by"]];
const LONGEST = Math.log10(86_400);

/** The lag on a logarithmic scale from a second to a day. */
function Bar({ seconds }) {
  if (seconds === null) return null;
  const share = Math.min(Math.max(Math.log10(Math.max(seconds, 1)) / LONGEST, 0.01), 1);
  const kind = seconds > 3600 ? "bad" : seconds > 300 ? "warn" : "";
  return html`<span class="bar" aria-hidden="true"><i class=${kind} style=${{ width: `${share * 100}%` }}></i></span>`;
}

function Row({ name, watermark, system, now, failing, open, link }) {
  return html`<tr class=${failing ? "failing" : ""}>
    <td class="fixed">${link ? html`<a href=${link} aria-expanded=${open ? "true" : "false"}>${open ? "▾" : "▸"} <b>${name}</b></a>` : name}</td>
    <td class="mono fixed">${watermark ? moment(watermark.low_watermark_us) : ""}</td>
    <td class="num">${lagText(now, watermark)}</td>
    <td><${Bar} seconds=${lag(now, watermark)} /></td>
    <td class="num">${system === undefined ? "" : duration(system)}</td>
    <td class="wide">${watermark?.held_by ?? html`<span class="muted">no report is known</span>`}
      ${failing && html`<div class="bad">${short(failing)}</div>`}</td></tr>`;
}

function Group({ topology, now, opened }) {
  const sources = topology.streams.filter((one) => one.injected);
  return html`
    <tr class="group"><th colspan="6" scope="rowgroup"><a href=${to("topology", topology.name)}>${topology.name}</a></th></tr>
    ${sources.map((one) => html`<${Row} key=${`source ${one.name}`} name=${html`source ${local(topology.name, one.name)}`} watermark=${one.watermark} now=${now} />`)}
    ${inOrder(topology).map((one) => {
      const open = opened === one.name;
      return html`<${Row} key=${one.name} name=${one.name} watermark=${one.watermark} system=${one.system_lag_seconds} now=${now} failing=${one.failures} open=${open}
          link=${open ? to("time") : to("time", topology.name, one.name)} />
        ${open && html`<tr class="why" key=${`why ${one.name}`}><td colspan="6"><${Hold} topology=${topology.name} computation=${one.name} /></td></tr>`}`;
    })}`;
}

export function Time({ overview, path }) {
  const live = overview.topologies.filter((one) => one.computations.some((row) => row.watermark) || one.state === "TOPOLOGY_STATE_RUNNING");
  return html`
    <${Heading} aside=${`the server's clock: ${moment(overview.now_us)} UTC`}>Time</${Heading}>
    <p class="muted">Up to its low watermark, the data of a computation is complete. Data lag: the clock minus the low watermark. System lag: how long the oldest work waits. A row opens what holds its watermark.</p>
    ${live.length === 0 ? html`<p class="empty">No topology runs.</p>` : html`<${Table} columns=${COLUMNS} label="Low watermarks">
      ${live.map((one) => html`<${Group} key=${one.name} topology=${one} now=${overview.now_us} opened=${path[0] === one.name ? path[1] : ""} />`)}</${Table}>`}`;
}
