// Dead letters: records and timers that a topology gave up. A list of a topology's, and one with everything.

import { html, useEffect, useRef, useState } from "/vendor/htm-preact-standalone.js";
import { call } from "/api.js";
import { count, failureText, moment, to } from "/format.js";
import { Handling } from "/handling.js";
import { keyPath, keyText } from "/keys.js";
import { Figures, Heading, Prose, Table } from "/parts.js";

const REFRESH_MS = 5000;
const PAGE = 100;
const ERROR_LETTERS = 160;
const STATES = [["", "to be handled"], ["waiting", "waiting"], ["in-replay", "in replay"], ["replayed", "replayed"], ["discarded", "discarded"], ["all", "all"]];
const COLUMNS = [["id", true], ["failed at (UTC)"], ["computation"], ["key"], ["state"], ["tries", true], ["error"]];

export function Letters({ overview, path }) {
  const topologies = overview.topologies.map((one) => one.name);
  const [topology, id] = path;
  if (id !== undefined) return html`<${OneLetter} key=${path.join("/")} topology=${topology} id=${id} />`;
  // Without a name: the topology with most letters.
  const most = [...overview.topologies].sort((one, other) => Number(other.unhandled_letters) - Number(one.unhandled_letters))[0];
  const shown = topology ?? most?.name;
  if (!shown) return html`<${Heading}>Dead letters</${Heading}><p class="empty">No topology runs.</p>`;
  const rows = overview.topologies.find((one) => one.name === shown);
  return html`<${List} key=${shown} topology=${shown} topologies=${topologies} computations=${rows?.computations.map((one) => one.name) ?? []} unhandled=${rows?.unhandled_letters} />`;
}

/** The letters of one selection, by pages. The first page is asked again every few seconds, and when their number changes. */
function useLetters(topology, selection, unhandled) {
  const [found, setFound] = useState({ rows: null, token: "", counts: null, log: "0", error: null });
  const state = useRef({ pages: 0 });
  const body = JSON.stringify(selection);
  const ask = async (token) => {
    const mine = (state.current.asked = {});
    try {
      const page = await call("LetterHandlingService/ListLetters", { topology, letters: selection, page_size: PAGE, page_token: token });
      if (state.current.asked !== mine) return;
      state.current.pages = token ? state.current.pages + 1 : 1;
      setFound((old) => ({ rows: [...(token ? old.rows : []), ...page.letters], token: page.next_page_token, counts: page.counts, log: page.log, error: null }));
    } catch (error) {
      if (state.current.asked === mine) setFound((old) => ({ ...old, error }));
    }
  };
  useEffect(() => {
    setFound({ rows: null, token: "", counts: null, log: "0", error: null });
    state.current.pages = 0;
    const refresh = () => { if (!document.hidden && state.current.pages <= 1) ask(""); };
    refresh();
    const timer = setInterval(refresh, REFRESH_MS);
    return () => { state.current.asked = null; clearInterval(timer); };
  }, [topology, body]);
  useEffect(() => { if (state.current.pages === 1) ask(""); }, [unhandled]);
  return [found, () => ask(found.token), () => ask("")];
}

function List({ topology, topologies, computations, unhandled }) {
  const [computation, setComputation] = useState("");
  const [error, setError] = useState("");
  const [typed, setTyped] = useState("");
  const [state, setState] = useState("");
  const [chosen, setChosen] = useState(new Set());
  const selection = { computation, error, state };
  const [found, more, again] = useLetters(topology, selection, unhandled);
  const { rows, counts, token, error: failure } = found;
  useEffect(() => { setChosen(new Set()); }, [computation, error, state, found.log]); // Another log has other letters with these ids.
  const choose = (id, on) => setChosen((old) => { const next = new Set(old); on ? next.add(id) : next.delete(id); return next; });
  const here = (rows ?? []).filter((one) => chosen.has(one.id)).map((one) => one.id);
  const handled = () => { setChosen(new Set()); again(); };
  const filtered = computation || error || state;
  return html`
    <${Heading} aside=${counts && `${count(counts.waiting)} waiting, ${count(counts.in_replay)} in replay, ${count(counts.replayed)} replayed, ${count(counts.discarded)} discarded`}>Dead letters</${Heading}>
    <p class="muted">Records and timers that a hook failed on until its policy gave them up. Mend the code first, by <code>millwheel topology update</code>, and replay them then. Each takes effect once.</p>
    <form class="choices" onSubmit=${(event) => { event.preventDefault(); setError(typed); }}>
      <label>Topology <select name="topology" onChange=${(event) => { location.hash = to("letters", event.target.value); }}>${(topologies.includes(topology) ? topologies : [topology, ...topologies]).map((one) => html`<option key=${one} value=${one} selected=${one === topology}>${one}</option>`)}</select></label>
      <label>Computation <select name="computation" onChange=${(event) => setComputation(event.target.value)}>${["", ...computations].map((one) => html`<option key=${one} value=${one} selected=${one === computation}>${one || "all"}</option>`)}</select></label>
      <label>State <select name="state" onChange=${(event) => setState(event.target.value)}>${STATES.map(([value, text]) => html`<option key=${value} value=${value} selected=${value === state}>${text}</option>`)}</select></label>
      <label>Error with <input name="error" value=${typed} onInput=${(event) => setTyped(event.target.value)} autocomplete="off" spellcheck="false" /></label>
      <button type="submit" class="button">Find</button>
    </form>
    ${failure && html`<p class="fault-text">The letters cannot be listed: ${failureText(failure)}${rows ? ". What is shown is older." : ""}</p>`}
    <${Handling} topology=${topology} handled=${handled} choices=${[
      [`${count(here.length)} selected`, { ids: here, log: found.log, state: "all" }, here.length > 0],
      [filtered ? "all of these" : "all", { ...selection, state: state === "all" ? "" : state }, rows?.length > 0 && (state === "" || state === "all" || state === "waiting" || state === "in-replay")],
    ]} />
    ${rows === null ? !failure && html`<p class="empty">Asking the log's owner …</p>` : rows.length === 0 ? html`<p class="empty">${token ? "None so far." : filtered ? "No such letters." : "No dead letters are to be handled."}</p>` : html`
      <${Table} label="Dead letters" columns=${[[html`<label class="check"><input type="checkbox" aria-label="Select all that are shown" checked=${here.length === rows.length} onChange=${(event) => setChosen(new Set(event.target.checked ? rows.map((one) => one.id) : []))} /></label>`], ...COLUMNS]}>
        ${rows.map((one) => html`<${Row} key=${one.id} one=${one} topology=${topology} chosen=${chosen.has(one.id)} choose=${choose} />`)}</${Table}>`}
    ${token && html`<p><button class="link" onClick=${more}>More letters</button></p>`}`;
}

function Row({ one, topology, chosen, choose }) {
  const error = one.error.length > ERROR_LETTERS ? `${one.error.slice(0, ERROR_LETTERS)} …` : one.error;
  return html`<tr class=${chosen ? "chosen" : ""}>
    <td><input type="checkbox" aria-label=${`Select letter ${one.id}`} checked=${chosen} onChange=${(event) => choose(one.id, event.target.checked)} /></td>
    <td class="num"><a href=${to("letters", topology, one.id)}><b>${one.id}</b></a></td><td class="mono fixed">${moment(one.failed_at_us).slice(0, 19)}</td>
    <td>${one.computation}</td><td class="mono">${one.key}</td><td>${one.state.replace("-", " ")}</td><td class="num">${count(one.attempts)}</td><td class="wide">${error}</td></tr>`;
}

function OneLetter({ topology, id }) {
  const [{ answer, error }, setFound] = useState({ answer: null, error: null });
  const ask = () => call("LetterHandlingService/GetLetter", { topology, id }).then(
    (found) => setFound({ answer: found, error: null }), (failed) => setFound((old) => ({ ...old, error: failed })));
  useEffect(() => { ask(); }, [topology, id]);
  return html`
    <${Heading}><a class="crumb" href=${to("letters", topology)}>Dead letters / ${topology} /</a> ${id}</${Heading}>
    ${error && html`<p class="fault-text"><${Prose} text=${failureText(error)} /></p>`}
    ${answer ? html`<${Shown} answer=${answer} topology=${topology} handled=${ask} />` : !error && html`<p class="empty">Asking the log's owner …</p>`}`;
}

/** Whether the code has changed since the failure. */
function codeText({ code_digest: failed, present_code_digest: present }) {
  if (!failed) return html`<span class="muted">not known</span>`;
  if (failed === present) return html`<code>${failed.slice(0, 12)}</code>, <b>which still runs</b>`;
  return html`<code>${failed.slice(0, 12)}</code>; <code>${present.slice(0, 12)}</code> runs now`;
}

function Shown({ answer, topology, handled }) {
  const { letter, refusal } = answer;
  const isTimer = !letter.stream;
  const place = keyPath(answer.delivery_key);
  const facts = [
    ["computation", html`<a href=${to("topology", topology, letter.computation)}>${letter.computation}</a>`],
    ["key", html`<a class="mono" href=${to("key", topology, letter.computation, place)}>${letter.key || keyText(answer.delivery_key)}</a>`],
    isTimer ? ["timer", letter.timer_tag || "without a tag"] : ["stream", html`<a href=${to("streams", ...letter.stream.split("/"))}>${letter.stream}</a>`],
    ["timestamp (UTC)", html`<span class="mono">${moment(letter.timestamp_us)}</span>`],
    ["failed at (UTC)", html`<span class="mono">${moment(letter.failed_at_us)}</span>`],
    ["code that failed", codeText(answer)],
    ...(letter.replay_of === undefined ? [] : [["a replay of", html`<a href=${to("letters", topology, letter.replay_of)}>letter ${letter.replay_of}</a>`]]),
  ];
  return html`
    <p class="fault-text">${letter.error}</p>
    <${Figures} of=${[["state", letter.state.replace("-", " ")], ["attempts", count(letter.attempts)]]} />
    <dl class="facts">${facts.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>
    ${refusal && html`<p class="warn">It cannot be replayed: <${Prose} text=${refusal} /></p>`}
    <${Handling} topology=${topology} handled=${handled} choices=${[["it", { ids: [letter.id], log: answer.log, state: "all" }, letter.state === "waiting" || letter.state === "in-replay"]]} />
    ${!isTimer && html`<h2>Record</h2><pre class="state" tabindex="0" role="region" aria-label="Record">${pretty(answer)}${answer.cut ? " … cut" : ""}</pre>`}
    <h2>Traceback</h2><pre class="state" tabindex="0" role="region" aria-label="Traceback">${answer.traceback || "none"}</pre>`;
}

function pretty({ value_text: text }) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}
