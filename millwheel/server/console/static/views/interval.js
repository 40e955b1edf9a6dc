// The interval that is selected: its figures, and its move, split and merge.

import { html, useEffect, useState } from "/vendor/htm-preact-standalone.js";
import { call, mayChange } from "/api.js";
import { bytes, count, cpu, duration, plural, rate, to } from "/format.js";
import { keyPath, keyText, rangeText, typedKey } from "/keys.js";
import { Failed, Plan } from "/parts.js";

const REFRESH_MS = 3000;
const CALLS = { move: "IntervalService/MoveInterval", split: "IntervalService/SplitInterval", merge: "IntervalService/MergeIntervals" };

export function Interval({ one, next, place, workers, refresh }) {
  const { interval, load } = one;
  const [owner, setOwner] = useState(null);
  useEffect(() => {
    let live = true;
    const ask = () => document.hidden || call("IntervalService/GetInterval", { interval: { journal: interval.journal } })
      .then((answer) => live && setOwner(answer), (error) => live && setOwner({ owner_error: error.message }));
    ask();
    const timer = setInterval(ask, REFRESH_MS);
    return () => { live = false; clearInterval(timer); };
  }, [interval.journal]);
  const status = owner?.owner;
  const rows = [
    ["owner", interval.owner?.worker_id ?? html`<span class="bad">none</span>`],
    ["sequencer", interval.sequencer],
    ["commits", status ? count(status.commit) : ""],
    ["records/s", load ? rate(load.records_per_second) : ""],
    ["busy", load ? cpu(load.busy) : ""],
    ["queued records", load ? count(load.queued_records) : ""],
    ["productions without ACK", load ? count(load.pending_productions) : ""],
    ["system lag", load ? duration(load.system_lag_seconds) : ""],
    ["timers", status ? count(status.timers) : ""],
    ["keys in memory", load ? `${count(load.keys)}, ${bytes(load.cached_bytes)}` : ""],
    ["late · dropped", load ? `${count(load.late)} · ${count(load.dropped)}` : ""],
    ["dead letters", load ? count(load.dead_letters) : ""],
  ];
  return html`<aside class="inspector" aria-label="Interval">
    <h2>${rangeText(interval.keys)}</h2>
    <p class="mono muted">${interval.journal}</p>
    <${Faults} one=${one} status=${status} place=${place} />
    ${owner?.owner_error && html`<p class="warn">Its owner does not say more: ${owner.owner_error}</p>`}
    <dl>${rows.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>
    ${interval.parents.length > 0 && html`<p class="muted">It was just split or merged, and still needs ${interval.parents.map((parent) => parent.journal).join(" and ")}.</p>`}
    ${mayChange() ? html`<${Changes} interval=${interval} next=${next} place=${place} workers=${workers} refresh=${refresh} />`
      : html`<p class="muted">This console is read-only. <code>millwheel interval move ${interval.journal}</code> moves the interval.</p>`}
  </aside>`;
}

function Faults({ one, status, place }) {
  const { load } = one;
  const failures = status?.failures;
  const texts = [
    load?.quarantined && `quarantined: ${load.damage}`,
    load?.absence && `its code cannot run: ${load.absence}`,
    load?.stopped && `stopped: ${load.stopped}`,
    load?.damaged_rows && `${plural(load.damaged_rows, "damaged row")}: ${load.damage}`,
    ...one.hot_keys.map((hot) => `key '${keyText(hot.key)}' has ${Math.round(hot.share * 100)} % of the load, and no split relieves that`),
  ].filter(Boolean);
  return html`
    ${texts.map((text) => html`<p class="fault-text" key=${text}>${text}</p>`)}
    ${failures && Number(failures.blocked_keys) > 0 && html`<div class="fault-text">${plural(failures.blocked_keys, "key")} blocked
      <ul>${failures.oldest.slice(0, 5).map((failure) => html`<li key=${failure.key}><a class="bad" href=${to("key", place[1], place[2], keyPath(failure.key))}><b>${keyText(failure.key)}</b></a>: ${failure.error}${failure.message ? `: ${failure.message}` : ""}
        <span class="muted"> in ${failure.hook}, ${plural(failure.attempts, "attempt")}</span></li>`)}</ul></div>`}`;
}

/** The three changes. Each is planned by the server first, and carried out when the plan is confirmed. */
function Changes({ interval, next, place, workers, refresh }) {
  const [kind, setKind] = useState("");
  const [at, setAt] = useState("");
  const [worker, setWorker] = useState("");
  const [plan, setPlan] = useState(null);
  const [failure, setFailure] = useState(null);
  const [busy, setBusy] = useState(false);
  const [done, setDone] = useState("");
  const name = { journal: interval.journal };
  const attempt = async (work) => {
    setBusy(true);
    setFailure(null);
    try { await work(); } catch (error) { setFailure(error); setPlan(null); }
    setBusy(false);
  };
  const begin = (other) => { setKind(other); setPlan(null); setFailure(null); setDone(""); };
  const ask = (event) => {
    event.preventDefault();
    attempt(async () => {
      const change = { interval: name, worker_id: worker, ...(kind === "split" && at ? { at: typedKey(at) } : {}) };
      const answer = await call("IntervalService/PlanIntervalChange", { [kind]: change });
      setPlan({ ...answer, id: requestId() });
    });
  };
  const confirm = () => attempt(async () => {
    const made = await call(CALLS[kind], { ...plan[kind], request_id: plan.id });
    const first = made.interval ?? made.intervals[0];
    setDone({ move: "Moved.", split: "Split.", merge: "Merged." }[kind]);
    begin("");
    await refresh();
    location.replace(to(...place, first.journal));
  });
  const left = (event) => { if (event.key === "Escape" && kind) { event.preventDefault(); event.stopPropagation(); begin(""); } };
  return html`<div class="changes" onKeyDown=${left}>
    <div class="tools" role="group" aria-label="Change this interval">
      ${["split", "merge", "move"].map((one) => html`<button key=${one} aria-pressed=${kind === one} disabled=${busy || (one === "merge" && !next)} onClick=${() => begin(one)}>${one === "merge" ? "Merge with next" : one === "split" ? "Split" : "Move"} …</button>`)}
    </div>
    <div role="status">${done && html`<p class="good">${done}</p>`}</div>
    ${kind && !plan && html`<form onSubmit=${ask}>
      ${kind === "split" && html`<label>At key <input name="at" value=${at} onInput=${(event) => setAt(event.target.value)} placeholder="where the load is halved" autocomplete="off" /></label>`}
      <label>${{ split: "Upper half to", merge: "Owner", move: "To" }[kind]} <select name="worker" onChange=${(event) => setWorker(event.target.value)}>
        <option value="">${kind === "move" ? "the least loaded worker" : "the present owner"}</option>
        ${workers.map((one) => html`<option key=${one.worker_id} value=${one.worker_id} selected=${one.worker_id === worker}>${one.worker_id} (${plural(one.intervals, "interval")})</option>`)}</select></label>
      <div class="tools"><button type="submit" class="primary" disabled=${busy}>Show what it will do</button><button type="button" onClick=${() => begin("")}>Cancel</button></div>
    </form>`}
    ${plan && html`<${Plan}>
      <ul>${plan.effects.map((text) => html`<li key=${text}>${text}</li>`)}</ul>
      <table><thead><tr><th scope="col">now</th><th scope="col">then</th></tr></thead><tbody><tr>
        ${[plan.before, plan.after].map((side) => html`<td>${side.map((part) => html`<div key=${part.keys.start ?? ""}><b>${rangeText(part.keys)}</b> <span class="muted">${part.worker_id || "no owner"}</span></div>`)}</td>`)}</tr></tbody></table>
      <div class="tools"><button class="primary" disabled=${busy} onClick=${confirm}>${{ split: "Split", merge: "Merge", move: "Move" }[kind]}</button><button onClick=${() => begin("")}>Cancel</button></div>
    </${Plan}>`}
    <${Failed} failure=${failure} />
  </div>`;
}

/** A new request id. `crypto.randomUUID` is there only with TLS or on this machine. */
function requestId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (one) => one.toString(16).padStart(2, "0")).join("");
}
