// The topologies: their states, loads, and what is wrong.

import { html } from "/vendor/htm-preact-standalone.js";
import { count, cpu, duration, lag, moment, plural, rate, stateName, to } from "/format.js";
import { Figures, Heading, HealthProblems, problemsOf, Table } from "/parts.js";

const COLUMNS = [
  ["topology"], ["state"], ["computations", true], ["records/s", true], ["busy", true], ["queued", true],
  ["data lag", true], ["system lag", true], ["dead letters", true], ["problems"],
];

const sum = (rows, field) => rows.reduce((total, one) => total + Number(one[field]), 0);

/** The largest of the lags that are known, in words. */
function worst(now, computations) {
  const lags = computations.map((one) => lag(now, one.watermark)).filter((one) => one !== null);
  return lags.length ? duration(Math.max(...lags)) : computations.length && computations[0].watermark ? moment(computations[0].watermark.low_watermark_us) : "";
}

/** A lag is marked from here on, as the alert MillwheelWorkStuck is. */
const LATE_SECONDS = 60;

function Row({ topology, now, problems }) {
  const computations = topology.computations;
  const failing = computations.filter((one) => one.failures);
  const late = Math.max(0, ...computations.map((one) => one.system_lag_seconds));
  // A hook that fails is shown with its error.
  const others = problems.filter((one) => !failing.some((other) => other.name === one.computation));
  const homeless = sum(computations, "without_owner");
  const state = stateName(topology.state);
  const active = state === "running" || state === "draining";
  return html`<tr class=${failing.length || problems.length ? "failing" : ""}>
    <td class="fixed"><a href=${to("topology", topology.name)}><b>${topology.name}</b></a> <span class="muted">v${topology.version}</span></td>
    <td class=${state === "running" ? "good" : active || state === "paused" ? "warn" : "muted"}>${state}</td>
    <td class="num">${computations.length}</td>
    <td class="num">${rate(sum(computations, "records_per_second"))}</td>
    <td class="num">${cpu(sum(computations, "busy"))}</td>
    <td class="num">${count(sum(computations, "queued_records"))}</td>
    <td class="num">${worst(now, computations)}</td>
    <td class=${`num ${late > LATE_SECONDS ? "bad" : ""}`}>${duration(late)}</td>
    <td class="num">${Number(topology.unhandled_letters) ? html`<a class="bad" href=${to("letters", topology.name)}>${count(topology.unhandled_letters)}</a>` : "0"}</td>
    <td class="wide">
      ${failing.map((one) => html`<div class="bad" key=${one.name}><a class="bad" href=${to("topology", topology.name, one.name)}><b>${one.name}</b></a>: ${short(one.failures)}</div>`)}
      ${others.map((one) => html`<div key=${one.text}><a class="bad" href=${to("topology", topology.name, one.computation)}><b>${one.computation}</b> needs an operator</a></div>`)}
      ${active && homeless > 0 && html`<div class="bad">${plural(homeless, "interval")} without an owner</div>`}
      ${topology.waiting_for.map((text) => html`<div class="warn" key=${text}>waits for ${text}</div>`)}
    </td></tr>`;
}

/** A failure in a few words. */
export function short(failures) {
  if (failures.absence) return `its code cannot run: ${failures.absence}`;
  if (failures.stopped) return `stopped: ${failures.stopped}`;
  const found = failures.failures;
  const one = found?.oldest?.[0] ?? found?.last ?? found?.key_functions?.[0];
  if (!one) return found?.awaited?.length ? `${found.awaited[0].hook} does not end` : failures.text;
  const blocked = Number(found.blocked_keys) ? `, ${plural(found.blocked_keys, "key")} blocked` : "";
  return `${one.error}${one.message ? `: ${one.message}` : ""} in ${one.hook ?? one.extractor}${blocked}`;
}

const isCancelled = (one) => one.state === "TOPOLOGY_STATE_CANCELLED";

function Rows({ topologies, label, overview }) {
  const problems = problemsOf(overview.health);
  return html`<${Table} columns=${COLUMNS} label=${label}>${topologies.map((one) => html`<${Row} key=${one.name} topology=${one} now=${overview.now_us} problems=${problems.filter((other) => other.topology === one.name)} />`)}</${Table}>`;
}

export function Topologies({ overview }) {
  const { topologies, health } = overview;
  // The master keeps a cancelled one in its lists for a day.
  const shown = topologies.filter((one) => !isCancelled(one)), cancelled = topologies.filter(isCancelled);
  const all = topologies.flatMap((one) => one.computations);
  const busy = health.workers.reduce((total, one) => total + one.cpu, 0);
  return html`
    <${Heading}>Topologies</${Heading}>
    <${HealthProblems} health=${health} />
    <${Figures} of=${[
      ["records/s", rate(sum(all, "records_per_second"))],
      ["queued", count(sum(all, "queued_records"))],
      ...(health.hidden ? [] : [["workers", `${health.workers.filter((one) => one.answers).length}/${health.workers.length}`],
      ["cpu of the workers", cpu(busy), "of a core"],
      ["intervals", count(health.intervals.all), health.intervals.without_owner ? `${health.intervals.without_owner} without owner` : ""]]),
    ]} />
    ${shown.length === 0
      ? html`<p class="empty">No topology runs. Submit one: <code>millwheel topology submit FILE.py:NAME</code></p>`
      : html`<${Rows} topologies=${shown} label="Topologies" overview=${overview} />`}
    ${cancelled.length > 0 && html`<details class="folded"><summary>${count(cancelled.length)} cancelled within the last day</summary>
      <${Rows} topologies=${cancelled} label="Cancelled topologies" overview=${overview} /></details>`}`;
}
