// The key space of a computation as a strip, and its intervals.

import { html, useEffect, useRef, useState } from "/vendor/htm-preact-standalone.js";
import { call } from "/api.js";
import { bytes, count, cpu, duration, plural, rate, to } from "/format.js";
import { keyText, rangeText } from "/keys.js";
import { Heading, Table, useEscape } from "/parts.js";
import { ConnectorKeys, partText } from "/views/connectors.js";
import { FindKey } from "/views/key.js";
import { Interval } from "/views/interval.js";

const REFRESH_MS = 3000;
const MANY = 36; // From so many intervals on, the strip has rows of small cells without texts.
const SHOWN = 50;
const OWNER_COLOURS = 8;
const LITTLE = 0.02; // A smaller share of the largest value has no colour.

const MEASURES = {
  load: { title: "Load", of: (one) => one.load?.busy ?? 0, text: (one) => `${cpu(one.load?.busy ?? 0)} of a core` },
  owner: { title: "Owner", of: (one) => one.interval.owner?.worker_id ?? "", text: (one) => one.interval.owner?.worker_id ?? "no owner" },
  size: { title: "Size", of: (one) => Number(one.load?.cached_bytes ?? 0), text: (one) => bytes(one.load?.cached_bytes ?? 0) },
};
const COLUMNS = [["keys"], ["owner"], ["records/s", true], ["busy", true], ["queued", true], ["keys", true], ["cached", true], ["system lag", true], ["problem"]];

/** What is wrong with an interval, in a few words; empty if nothing is. */
export function trouble(one) {
  const load = one.load;
  if (!one.interval.owner) return "no owner";
  if (!load) return "";
  if (load.quarantined) return "quarantined";
  if (load.absence) return "its code cannot run";
  if (load.stopped) return "stopped";
  if (Number(load.failures?.blocked_keys ?? 0)) return `${plural(load.failures.blocked_keys, "key")} blocked`;
  if (load.damaged_rows) return `${plural(load.damaged_rows, "damaged row")}`;
  return one.hot_keys.length ? "a key too hot to split" : "";
}

/** All intervals of a computation, asked again every few seconds, and at once after a change. */
function useIntervals(topology, computation) {
  const [found, setFound] = useState({ rows: null, failure: null });
  const again = useRef(() => {});
  useEffect(() => {
    let live = true;
    let timer = 0;
    const ask = async () => {
      clearTimeout(timer);
      try {
        const rows = [];
        const request = { topology, computation, page_size: 1000, brief: true };
        do {
          const page = await call("IntervalService/ListIntervals", request);
          rows.push(...page.intervals);
          request.page_token = page.next_page_token;
        } while (request.page_token);
        if (live) setFound({ rows, failure: null });
      } catch (error) {
        if (live) setFound((old) => ({ ...old, failure: error }));
      }
      clearTimeout(timer);
      if (live && !document.hidden) timer = setTimeout(ask, REFRESH_MS);
    };
    const seen = () => { if (!document.hidden) ask(); };
    setFound({ rows: null, failure: null });
    again.current = ask;
    document.addEventListener("visibilitychange", seen);
    ask();
    return () => { live = false; clearTimeout(timer); document.removeEventListener("visibilitychange", seen); };
  }, [topology, computation]);
  return [found, () => again.current()];
}

/** The class of a cell: a step of one scale, or the colour of an owner. */
function shade(one, by, most, owners) {
  if (by === "owner") return one.interval.owner ? `owner-${owners.indexOf(one.interval.owner.worker_id) % OWNER_COLOURS}` : "owner-none";
  const share = MEASURES[by].of(one) / most;
  return share < LITTLE ? "heat-0" : `heat-${Math.min(1 + Math.floor(share * 5), 5)}`;
}

function Strip({ rows, by, selected, choose }) {
  const most = Math.max(...rows.map((one) => Number(MEASURES[by].of(one)) || 0), 1e-9);
  const owners = [...new Set(rows.map((one) => one.interval.owner?.worker_id).filter(Boolean))].sort();
  const at = rows.findIndex((one) => one.interval.journal === selected);
  const pressed = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const next = step ? Math.min(Math.max(at + step, 0), rows.length - 1) : { Home: 0, End: rows.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    choose(rows[next]);
  };
  const many = rows.length > MANY;
  return html`
    <div class=${`strip ${many ? "many" : ""}`} role="listbox" tabindex="0" aria-label="Key space, in the order of the keys" onKeyDown=${pressed}
      aria-activedescendant=${at >= 0 ? `cell-${at}` : null} style=${many ? {} : { gridTemplateColumns: `repeat(${rows.length}, minmax(0, 1fr))` }}>
      ${rows.map((one, index) => {
        const problem = trouble(one);
        const first = keyText(one.interval.keys.start) || "first";
        // What is seen begins the name, so that it can be said to a program that takes speech.
        const text = `${many ? "" : `${first}, `}${rangeText(one.interval.keys)}: ${MEASURES[by].text(one)}${problem ? `, ${problem}` : ""}`;
        return html`<div key=${one.interval.journal} id=${`cell-${index}`} role="option" aria-selected=${index === at} aria-label=${text} title=${text}
          class=${`cell ${shade(one, by, most, owners)} ${problem ? "trouble" : ""}`} onClick=${() => choose(one)}>${many ? "" : html`<span>${first}</span>`}</div>`;
      })}
    </div>
    <div class="legend">${by === "owner"
      ? owners.map((owner, index) => html`<span key=${owner}><i class=${`cell owner-${index % OWNER_COLOURS}`}></i>${owner}</span>`)
      : html`<span>${MEASURES[by].title.toLowerCase()}: 0 <i class="cell heat-0"></i><i class="cell heat-1"></i><i class="cell heat-2"></i><i class="cell heat-3"></i><i class="cell heat-4"></i><i class="cell heat-5"></i> ${by === "load" ? `${cpu(most)} of a core` : bytes(most < 1 ? 0 : most)}</span>`}
      <span><i class="cell heat-0 trouble"></i>needs attention</span></div>`;
}

/** Intervals with a problem first, then by the measure. An owner's intervals stay in the order of their keys. */
function ordered(rows, by) {
  const measure = MEASURES[by].of;
  const compared = by === "owner" ? (one, other) => measure(one).localeCompare(measure(other)) : (one, other) => measure(other) - measure(one);
  return [...rows].sort((one, other) => Boolean(trouble(other)) - Boolean(trouble(one)) || compared(one, other));
}

function Rows({ rows, by, selected, place }) {
  const [most, setMost] = useState(SHOWN);
  const sorted = ordered(rows, by);
  return html`<${Table} columns=${COLUMNS} label="Intervals">
    ${sorted.slice(0, most).map((one) => {
      const load = one.load;
      const problem = trouble(one);
      const chosen = one.interval.journal === selected;
      return html`<tr key=${one.interval.journal} class=${`${problem ? "failing" : ""} ${chosen ? "chosen" : ""}`}>
        <td><a href=${to(...place, one.interval.journal)} aria-current=${chosen ? "true" : null}><b>${rangeText(one.interval.keys)}</b></a></td>
        <td>${one.interval.owner?.worker_id ?? html`<span class="bad">none</span>`}</td>
        <td class="num">${load ? rate(load.records_per_second) : ""}</td><td class="num">${load ? cpu(load.busy) : ""}</td>
        <td class="num">${load ? count(load.queued_records) : ""}</td><td class="num">${load ? count(load.keys) : ""}</td>
        <td class="num">${load ? bytes(load.cached_bytes) : ""}</td><td class="num">${load ? duration(load.system_lag_seconds) : ""}</td>
        <td class="bad">${problem || (load ? "" : html`<span class="muted">no report yet</span>`)}</td></tr>`;
    })}</${Table}>
    ${rows.length > most && html`<p><button class="link" onClick=${() => setMost(most + SHOWN)}>${SHOWN} more of ${count(rows.length - most)}</button></p>`}`;
}

const Choice = ({ name, title, value, options, changed }) => html`
  <label>${title} <select name=${name} onChange=${(event) => changed(event.target.value)}>
    ${options.map(([one, text]) => html`<option key=${one} value=${one} selected=${one === value}>${text}</option>`)}</select></label>`;

export function Keys({ overview, path }) {
  const places = overview.topologies.flatMap((one) => one.computations.filter((row) => row.intervals).map((row) => `${one.name}/${row.name}`));
  const named = path.slice(0, 2).join("/");
  const place = places.includes(named) ? named : path.length < 2 ? places[0] : named;
  if (!place) return html`<${Heading}>Keys</${Heading}><p class="empty">No computation has intervals. They appear when a topology runs.</p>`;
  const [topology, computation] = place.split("/");
  const one = overview.topologies.find((other) => other.name === topology)?.computations.find((other) => other.name === computation);
  return html`<${KeySpace} key=${place} topology=${topology} computation=${computation} one=${one} now=${overview.now_us} places=${places} selected=${path[2] ?? ""} workers=${overview.health.workers} />`;
}

function KeySpace({ topology, computation, one: connector, now, places, selected, workers }) {
  const [by, setBy] = useState("load");
  const [{ rows, failure }, refresh] = useIntervals(topology, computation);
  const place = ["keys", topology, computation];
  const choose = (one) => { location.replace(to(...place, one.interval.journal)); };
  const sum = (of) => rows.reduce((total, one) => total + Number(of(one) ?? 0), 0);
  const one = rows?.find((other) => other.interval.journal === selected);
  useEscape(selected && to(...place));
  return html`
    <${Heading} aside=${rows && `${plural(rows.length, "interval")}, ${rate(sum((row) => row.load?.records_per_second))} records/s, busy ${cpu(sum((row) => row.load?.busy))} of a core`}>Keys</${Heading}>
    <div class="choices">
      <${Choice} name="computation" title="Computation" value=${`${topology}/${computation}`} options=${places.map((text) => [text, text])} changed=${(value) => { location.hash = to("keys", ...value.split("/")); }} />
      <${Choice} name="by" title="Colour by" value=${by} options=${Object.entries(MEASURES).map(([name, { title }]) => [name, title.toLowerCase()])} changed=${setBy} />
    </div>
    <${FindKey} topology=${topology} computation=${computation} />
    <${ConnectorKeys} topology=${topology} one=${connector} now=${now} />
    ${["source", "sink"].includes(partText(connector)) && html`<h2>Intervals of these keys</h2>`}
    ${failure && html`<p class="fault-text">The intervals cannot be listed: ${failure.message}${rows ? ". What is shown is older." : ""}</p>`}
    ${rows === null ? !failure && html`<p class="empty">Loading …</p>` : html`
      <${Strip} rows=${rows} by=${by} selected=${selected} choose=${choose} />
      <div class=${one ? "split first" : ""}>
        <div><${Rows} rows=${rows} by=${by} selected=${selected} place=${place} /></div>
        ${one && html`<${Interval} key=${one.interval.journal} one=${one} next=${rows[rows.indexOf(one) + 1]} place=${place} workers=${workers} refresh=${refresh} />`}
        ${selected && !one && html`<p class="muted">The interval with the journal ${selected} is not there any more: it was split or merged.</p>`}
      </div>`}`;
}
