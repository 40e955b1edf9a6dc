// One key: its state, timers, pending work and failure. And the keys and timers of a computation.

import { html, useEffect, useState } from "/vendor/htm-preact-standalone.js";
import { call } from "/api.js";
import { bytes, count, failureText, moment, plural, to } from "/format.js";
import { keyPath, keyText, pathKey, pastPrefix, rangeText, typedKey } from "/keys.js";
import { Figures, Heading, Prose, Table } from "/parts.js";

const REFRESH_MS = 3000;
const PAGE = 100;
const EMPTY_PAGES = 20; // So many pages without a key are passed over for one click.

/** A form that goes to a key. */
export function FindKey({ topology, computation }) {
  const [text, setText] = useState("");
  const go = (event) => { event.preventDefault(); if (text) location.hash = to("key", topology, computation, keyPath(typedKey(text))); };
  return html`<form class="find" role="search" onSubmit=${go}>
    <label>Key <input name="key" value=${text} onInput=${(event) => setText(event.target.value)} autocomplete="off" spellcheck="false" /></label>
    <button type="submit" class="button">Show key</button>
    <a href=${to("key", topology, computation)}>all keys and timers</a></form>`;
}

const Crumb = ({ topology, computation }) => html`<a class="crumb" href=${to("keys", topology, computation)}>Keys / ${topology}/${computation} /</a> `;

export function Key({ path }) {
  const [topology, computation, key] = path;
  if (!computation) return html`<p class="empty">No computation is named. <a href="#/keys">Key space</a></p>`;
  if (key === undefined) return html`<${Lists} topology=${topology} computation=${computation} />`;
  return html`<${OneKey} key=${path.join("/")} topology=${topology} computation=${computation} named=${pathKey(key)} />`;
}

/** Asks again every few seconds, unless the page is hidden. */
function useAnswer(path, request) {
  const [found, setFound] = useState({ answer: null, error: null });
  const body = JSON.stringify(request);
  useEffect(() => {
    let live = true;
    const ask = () => document.hidden || call(path, request)
      .then((answer) => live && setFound({ answer, error: null }), (error) => live && setFound((old) => ({ ...old, error })));
    ask();
    const timer = setInterval(ask, REFRESH_MS);
    return () => { live = false; clearInterval(timer); };
  }, [path, body]);
  return found;
}

function OneKey({ topology, computation, named }) {
  const { answer, error } = useAnswer("KeyService/GetKey", { topology, computation, key: named });
  return html`
    <${Heading}><${Crumb} topology=${topology} computation=${computation} /><span class="mono">${keyText(named)}</span></${Heading}>
    <${FindKey} topology=${topology} computation=${computation} />
    ${error && html`<p class="fault-text">${failureText(error)}</p>`}
    ${answer ? html`<${Shown} answer=${answer} place=${[topology, computation]} />` : !error && html`<p class="empty">Asking its owner …</p>`}`;
}

function Shown({ answer, place }) {
  const { key, interval, failure_text: failure, own_keys: own } = answer;
  return html`
    ${own && html`<p class="warn">${own}.</p>`}
    ${failure && html`<div class="fault-text"><b>Blocked.</b> <${Prose} text=${failure} />
      <div>Its work: <code>${key.failure.work}</code></div></div>`}
    ${!failure && key.waits && html`<p class="warn">${key.waits}</p>`}
    ${key.stopped && html`<p class="fault-text">The computation is stopped: ${key.stopped}</p>`}
    <${Figures} of=${[
      ["pending records", count(key.pending_records)],
      ["productions without ACK", count(key.pending_productions)],
      ["timers", count(key.timers.length)],
      ["hold", key.hold_us === undefined ? "none" : moment(key.hold_us)],
      ["owner", interval.owner?.worker_id ?? "none"],
      ["commit", count(key.commit)],
    ]} />
    ${key.sealed_commit !== "0" && html`<p class="warn">This is what commit ${key.sealed_commit} leaves. The store has not taken it yet.</p>`}
    <h2>State</h2>
    ${key.state_error ? html`<p class="fault-text">It cannot be read: ${key.state_error}</p>`
      : key.state_text || key.state ? html`<pre class="state" tabindex="0">${pretty(key)}</pre>` : html`<p class="muted">none</p>`}
    <h2>Timers</h2>
    ${key.timers.length === 0 ? html`<p class="muted">none</p>` : html`<${Table} label="Timers" columns=${[["tag"], ["time (UTC)"], ["clock"], ["hold (UTC)"]]}>
      ${key.timers.map((one) => html`<tr key=${`${one.tag} ${one.wall_time}`}><td>${one.tag || html`<span class="muted">without a tag</span>`}</td><td class="mono">${moment(one.timestamp_us)}</td>
        <td>${one.wall_time ? "wall" : "watermark"}</td><td class="mono">${one.hold_us === undefined ? "" : moment(one.hold_us)}</td></tr>`)}</${Table}>`}
    <p class="muted">Interval <a href=${to("keys", ...place, interval.journal)}>${rangeText(interval.keys)}</a>, journal <span class="mono">${interval.journal}</span></p>`;
}

function pretty({ state, state_text: text }) {
  if (!text) return `${state} (base64)`;
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

function Lists({ topology, computation }) {
  return html`
    <${Heading}><${Crumb} topology=${topology} computation=${computation} />keys and timers</${Heading}>
    <${FindKey} topology=${topology} computation=${computation} />
    <div class="pair"><${KeyList} topology=${topology} computation=${computation} /><${TimerList} topology=${topology} computation=${computation} /></div>`;
}

function KeyList({ topology, computation }) {
  const [prefix, setPrefix] = useState("");
  const [rows, setRows] = useState([]);
  const [token, setToken] = useState(null); // null: nothing was asked yet. "": there are no more.
  const [error, setError] = useState(null);
  const [spilled, setSpilled] = useState(0);
  const more = async (begin, before) => {
    setError(null);
    try {
      let page = { next_page_token: begin };
      const found = [...before];
      for (let turn = 0; turn < EMPTY_PAGES && found.length === before.length && (turn === 0 || page.next_page_token); turn += 1) {
        const keys = prefix ? { start: typedKey(prefix), end: pastPrefix(typedKey(prefix)) } : undefined;
        page = await call("KeyService/ListComputationKeys", { topology, computation, keys, page_size: PAGE, page_token: page.next_page_token });
        found.push(...page.keys);
      }
      setRows(found);
      setSpilled(page.spilled_timers);
      setToken(page.next_page_token);
    } catch (failed) { setError(failed); }
  };
  useEffect(() => { more("", []); }, [topology, computation]);
  return html`<section><h2>Keys</h2>
    <form class="find" onSubmit=${(event) => { event.preventDefault(); more("", []); }}>
      <label>Beginning with <input name="prefix" value=${prefix} onInput=${(event) => setPrefix(event.target.value)} autocomplete="off" spellcheck="false" /></label><button class="button" type="submit">List</button></form>
    ${error && html`<p class="fault-text">${error.message}</p>`}
    ${token === null && !error && html`<p class="empty">Asking the owners …</p>`}
    ${token !== null && (rows.length === 0 ? html`<p class="muted">No key has a state or a timer in memory${token ? " so far" : ""}.</p>` : html`
      <${Table} label="Keys" columns=${[["key"], ["state", true], ["timers", true], ["owner"]]}>
        ${rows.map(({ listed, worker_id: worker }) => html`<tr key=${listed.key}><td><a href=${to("key", topology, computation, keyPath(listed.key))}>${keyText(listed.key)}</a></td>
          <td class="num">${listed.damaged ? html`<span class="bad">damaged</span>` : bytes(listed.state_bytes)}</td><td class="num">${count(listed.timers)}</td><td>${worker}</td></tr>`)}</${Table}>`)}
    ${token && html`<p><button class="link" onClick=${() => more(token, rows)}>More keys</button></p>`}
    ${Number(spilled) > 0 && html`<p class="muted">${plural(spilled, "timer")} only in the store. A key that has nothing else is not listed.</p>`}
  </section>`;
}

function TimerList({ topology, computation }) {
  const [size, setSize] = useState(PAGE);
  const { answer, error } = useAnswer("KeyService/ListComputationTimers", { topology, computation, page_size: size });
  return html`<section><h2>Timers, the first to fire first</h2>
    ${error && html`<p class="fault-text">${error.message}</p>`}
    ${answer && (answer.timers.length === 0 ? html`<p class="muted">none</p>` : html`
      <${Table} label="Timers" columns=${[["time (UTC)"], ["key"], ["tag"], ["clock"]]}>
        ${answer.timers.map(({ listed }) => html`<tr key=${`${listed.key} ${listed.timer.tag} ${listed.timer.wall_time}`}><td class="mono">${moment(listed.timer.timestamp_us)}</td>
          <td><a href=${to("key", topology, computation, keyPath(listed.key))}>${keyText(listed.key)}</a></td><td>${listed.timer.tag}</td><td>${listed.timer.wall_time ? "wall" : "watermark"}</td></tr>`)}</${Table}>`)}
    ${answer?.more && size < 1000 && html`<p><button class="link" onClick=${() => setSize(Math.min(size * 2, 1000))}>More timers</button></p>`}
  </section>`;
}
