// What has happened: who, when, what, before and after.

import { html, useEffect, useState } from "/vendor/htm-preact-standalone.js";
import { call } from "/api.js";
import { moment, to } from "/format.js";
import { Heading, Prose, Table } from "/parts.js";

const REFRESH_MS = 3000;
const PAGE = 100;
const KINDS = [["", "all"], ["topology", "topologies"], ["interval", "intervals"], ["worker", "workers"], ["master", "masters"], ["hooks", "hooks"], ["log", "logs"], ["injector", "injectors"]];
const BAD = new Set(["worker.lost", "master.interrupted", "hooks.failing", "topology.cancelled"]);

function Changed({ one }) {
  if (one.owners.length) return html`<ul class="plain">${one.owners.map((change) => html`<li key=${`${change.before} ${change.after}`}>${change.intervals} from ${change.before || "no worker"} to ${change.after || "no worker"}</li>`)}</ul>`;
  if (!one.before && !one.after) return null;
  return html`${one.before && html`<div class="muted">${one.before}</div>`}${one.after && html`<div>${one.before ? "→ " : ""}${one.after}</div>`}`;
}

function Row({ one }) {
  return html`<tr class=${BAD.has(one.kind) ? "failing" : ""}><td class="mono fixed">${moment(one.at_us).slice(0, 19)}</td><td class="fixed">${one.kind}</td><td>${one.actor}</td>
    <td class="wide"><${Prose} text=${one.text} />${one.topology && html` <a href=${to("topology", one.topology)}>${one.topology}</a>`}</td><td class="wide"><${Changed} one=${one} /></td></tr>`;
}

export function Events({ overview }) {
  const [kind, setKind] = useState("");
  const [topology, setTopology] = useState("");
  const [size, setSize] = useState(PAGE);
  const [{ answer, error }, setFound] = useState({ answer: null, error: null });
  useEffect(() => {
    let live = true;
    const ask = () => document.hidden || call("ClusterService/ListEvents", { kind, topology, page_size: size })
      .then((given) => live && setFound({ answer: given, error: null }), (failed) => live && setFound((old) => ({ ...old, error: failed })));
    ask();
    const timer = setInterval(ask, REFRESH_MS);
    return () => { live = false; clearInterval(timer); };
  }, [kind, topology, size]);
  const names = [["", "all"], ...overview.topologies.map((one) => [one.name, one.name])];
  return html`
    <${Heading} aside="the last 1,000 events are kept">Events</${Heading}>
    <div class="choices">
      <label>Kind <select name="kind" onChange=${(event) => setKind(event.target.value)}>${KINDS.map(([value, text]) => html`<option key=${value} value=${value} selected=${value === kind}>${text}</option>`)}</select></label>
      <label>Topology <select name="topology" onChange=${(event) => setTopology(event.target.value)}>${names.map(([value, text]) => html`<option key=${value} value=${value} selected=${value === topology}>${text}</option>`)}</select></label>
    </div>
    ${error && html`<p class="fault-text">The events cannot be listed: ${error.message}</p>`}
    ${answer === null ? !error && html`<p class="empty">Loading …</p>` : answer.events.length === 0 ? html`<p class="empty">No such event.</p>` : html`
      <${Table} label="Events" columns=${[["time (UTC)"], ["kind"], ["by"], ["event"], ["before and after"]]}>${answer.events.map((one) => html`<${Row} key=${one.number} one=${one} />`)}</${Table}>`}
    ${answer?.next_page_token && html`<p><button class="link" onClick=${() => setSize(Math.min(size + PAGE, 1000))}>Older events</button></p>`}`;
}
