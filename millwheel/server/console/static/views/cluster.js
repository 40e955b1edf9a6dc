// The processes of the cluster: masters, workers, the authority's shards, and the store.

import { html } from "/vendor/htm-preact-standalone.js";
import { bytes, count, cpu, duration, moment, rate } from "/format.js";
import { Figures, Heading, HealthProblems, Table } from "/parts.js";

const Answers = ({ is }) => (is ? html`<span class="good">answers</span>` : html`<b class="bad">does not answer</b>`);

const Stalled = (one) => html`<span class=${one.stalled > 0.3 ? "bad" : "muted"}>${Math.round((one.stalled || 0) * 100)} %</span>`;

export function Cluster({ overview }) {
  const { masters, workers, authorities, store, intervals, hot_keys: hot, departed = [], hidden } = overview.health;
  if (hidden) return html`<${Heading}>Cluster</${Heading}><p class="empty">The health of the cluster needs the role <code>read</code> for the whole cluster. Yours is for some topologies.</p>`;
  return html`
    <${Heading}>Cluster</${Heading}>
    <${HealthProblems} health=${overview.health} />
    <${Figures} of=${[
      ["intervals", count(intervals.all)],
      ["without an owner", intervals.without_owner ? html`<span class="bad">${count(intervals.without_owner)}</span>` : "0"],
      ["starting from others", count(intervals.with_parents)],
      ["store", store.answers ? html`${duration(store.read_seconds)}` : html`<span class="bad">${store.error}</span>`, store.answers ? "per read" : ""],
      ["commits/s", rate(store.commits_per_second)],
      ["time of a commit", store.commit_seconds ? duration(store.commit_seconds) : "none"],
      ["repeated calls to it", store.repeating_journals ? html`<span class="bad">${count(store.repeating_journals)}</span>` : "0"],
    ]} />
    <h2>Workers</h2>
    <${Table} label="Workers" columns=${[["worker"], ["address"], ["state"], ["intervals", true], ["cpu", true], ["kept from running", true], ["memory", true], ["code"]]}>
      ${workers.map((one) => html`<tr key=${one.worker_id} class=${one.answers ? "" : "failing"}>
        <td><b>${one.worker_id}</b></td><td class="mono">${one.address}</td><td><${Answers} is=${one.answers} /></td>
        <td class="num">${count(one.intervals)}</td><td class="num">${cpu(one.cpu)}</td>
        <td class="num">${Stalled(one)}</td><td class="num">${bytes(one.resident_bytes)} <span class="muted">of ${bytes(one.memory_limit_bytes)}</span></td>
        <td class="mono">${one.package ? one.package.slice(0, 12) : html`<span class="muted">any</span>`}</td></tr>`)}
      ${departed.map((one) => html`<tr key=${one.worker_id} class="muted"><td><b>${one.worker_id}</b></td><td class="mono">${one.address}</td>
        <td colspan="6">stopped in order at ${moment(one.left_at_us).slice(11, 19)} UTC, and has not come back</td></tr>`)}</${Table}>
    <h2>Masters</h2>
    <${Table} label="Masters" columns=${[["master"], ["state"], ["console"]]}>
      ${masters.map((one) => html`<tr key=${one.address}><td class="mono">${one.address}</td><td>${one.leads ? html`<b>leads</b>` : "stands by"}</td>
        <td>${one.console && html`<a href=${one.console}>${one.console}</a>`}</td></tr>`)}</${Table}>
    <h2>Watermark authority</h2>
    <${Table} label="Shards of the authority" columns=${[["shard"], ["address"], ["state"]]}>
      ${authorities.map((one) => html`<tr key=${one.shard} class=${one.answers ? "" : "failing"}><td>${one.shard}</td><td class="mono">${one.address || "no process serves it"}</td><td><${Answers} is=${one.answers} /></td></tr>`)}</${Table}>
    ${hot.length > 0 && html`<h2>Hot keys</h2>
      <${Table} label="Hot keys" columns=${[["computation"], ["key"], ["share of its interval", true], ["busy", true]]}>
        ${hot.map((one) => html`<tr key=${one.key}><td>${one.topology}/${one.computation}</td><td class="mono">${atob(one.key)}</td>
          <td class="num">${Math.round(one.share * 100)} %</td><td class="num">${cpu(one.busy)}</td></tr>`)}</${Table}>`}`;
}
