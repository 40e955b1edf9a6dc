// Low watermarks: of each source and computation, how far behind, and what holds it.

import { html } from "/vendor/htm-preact-standalone.js";
import { duration, lag, lagText, local, moment, to } from "/format.js";
import { Heading, Hold, Table } from "/parts.js";
import { state } from "/views/injectors.js";
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

const SOURCE = "source:"; // No computation has a colon in its name.

/** The injector processes of a stream, those furthest behind first: the first of them holds the source's watermark. */
function Processes({ stream, injectors, now }) {
  const rows = injectors.filter((one) => one.stream === stream && !one.retired).sort((one, other) => Number(one.watermark_us) - Number(other.watermark_us));
  if (rows.length === 0) return html`<p class="muted">No process has injected into ${stream} yet. Its watermark waits for the first one.</p>`;
  return html`<ol class="chain">${rows.map((one) => html`<li key=${one.process}>injector process <b>${one.process}</b>, ${state(one)}: ${moment(one.watermark_us)} <span class="muted">(${lagText(now, one.watermark_us)} behind)</span></li>`)}</ol>
    <p><a href=${to("injectors")}>All injectors</a></p>`;
}

function Group({ topology, now, opened, injectors }) {
  const sources = topology.streams.filter((one) => one.injected);
  return html`
    <tr class="group"><th colspan="6" scope="rowgroup"><a href=${to("topology", topology.name)}>${topology.name}</a></th></tr>
    ${sources.map((one) => {
      const place = SOURCE + local(topology.name, one.name);
      const open = opened === place;
      return html`<${Row} key=${place} name=${`source ${local(topology.name, one.name)}`} watermark=${one.watermark} now=${now} open=${open} link=${open ? to("time") : to("time", topology.name, place)} />
        ${open && html`<tr class="why" key=${`why ${place}`}><td colspan="6"><${Processes} stream=${one.name} injectors=${injectors} now=${now} /></td></tr>`}`;
    })}
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
      ${live.map((one) => html`<${Group} key=${one.name} topology=${one} now=${overview.now_us} opened=${path[0] === one.name ? path[1] : ""} injectors=${overview.injectors} />`)}</${Table}>`}`;
}
