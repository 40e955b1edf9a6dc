// The splits of a source and the shards of a sink, which are keys of a computation: how far each is, by its state.

import { html, useEffect, useState } from "/vendor/htm-preact-standalone.js";
import { call } from "/api.js";
import { count, duration, moment, plural, to } from "/format.js";
import { keyPath, keyText } from "/keys.js";
import { Table } from "/parts.js";

const REFRESH_MS = 3000;
const MOST = 1000; // A source may have more splits. Keys come in the order of their names.
const SHOWN = 20;

/** What a part of a source or of a sink is, in a word. */
export const partText = (one) => ({
  CONNECTOR_PART_FINDS_SPLITS: "splits", CONNECTOR_PART_READS: "source", CONNECTOR_PART_MAKES_BATCHES: "batches", CONNECTOR_PART_WRITES: "sink",
})[one?.connector] ?? "";

/** Columns: [title, whether it has numbers, what of a state and the present time]. `state`: what is said if nothing fails. */
const SOURCE = {
  noun: "split",
  columns: [
    ["records read", true, (state) => count(state.records)],
    ["position", false, place],
    ["behind", true, behind],
    ["last record", true, (state, now) => (state.records ? ago(state.read_at, now) : "none")],
    ["low watermark (UTC)", false, (state) => watermark(state.watermark)],
  ],
  narrow: [["position", false, place], ["behind", true, behind]],
  state: (state) => (state.ended ? "ended" : "reading"),
  weight: (state) => state.behind ?? 0,
};
const SINK = {
  noun: "shard",
  columns: [
    ["records written", true, (state) => count(state.records)],
    ["last batch", true, (state) => count(state.batch)],
    ["written", true, (state, now) => (state.at ? ago(state.at, now) : "none")],
  ],
  narrow: [["last batch", true, (state) => count(state.batch)], ["written", true, (state, now) => (state.at ? ago(state.at, now) : "none")]],
  state: () => "",
  weight: (state) => -state.at,
};
const KINDS = { CONNECTOR_PART_READS: SOURCE, CONNECTOR_PART_WRITES: SINK };

function place(state) { return state.position == null ? "at the beginning" : JSON.stringify(state.position); }
function behind(state) { return state.behind == null ? "not known" : count(state.behind); }

const ENDLESS = 9e18; // The first and the last times are beyond it. A number has not all of their digits.
const watermark = (us) => (us < -ENDLESS ? "none yet" : us > ENDLESS ? "ended" : moment(String(us)));
const ago = (us, now) => `${duration(Math.max(0, (Number(now) - us) / 1e6))} ago`;

/** The states, asked again every few seconds. */
function useStates(topology, computation) {
  const [found, setFound] = useState({ rows: null, more: false, error: null });
  useEffect(() => {
    let live = true;
    let timer = 0;
    const ask = async () => {
      if (!document.hidden) {
        try {
          const request = { topology, computation, page_size: MOST, states: true };
          const rows = [];
          do {
            const page = await call("KeyService/ListComputationKeys", request);
            rows.push(...page.keys.map(({ listed, worker_id: worker }) => ({ key: listed.key, worker, error: listed.error, damaged: listed.damaged, state: parsed(listed.state_text) })));
            request.page_token = page.next_page_token;
          } while (request.page_token && rows.length < MOST);
          if (live) setFound({ rows: rows.slice(0, MOST), more: Boolean(request.page_token), error: null });
        } catch (error) {
          if (live) setFound((old) => ({ ...old, error }));
        }
      }
      if (live) timer = setTimeout(ask, REFRESH_MS);
    };
    ask();
    return () => { live = false; clearTimeout(timer); };
  }, [topology, computation]);
  return found;
}

function parsed(text) {
  try { return text ? JSON.parse(text) : null; } catch { return null; }
}

/** A row for each split or shard: what fails first, then what is furthest behind. Nothing for any other computation. */
export function ConnectorKeys({ topology, one, now, narrow = false }) {
  const kind = KINDS[one?.connector];
  return kind && html`<${KeyRows} key=${one.name} topology=${topology} computation=${one.name} kind=${kind} columns=${narrow ? kind.narrow : kind.columns} now=${now} />`;
}

const trouble = (one) => (one.damaged ? "damaged" : one.error);

function KeyRows({ topology, computation, kind, columns, now }) {
  const { rows, more, error } = useStates(topology, computation);
  const [most, setMost] = useState(SHOWN);
  const name = `${kind.noun[0].toUpperCase()}${kind.noun.slice(1)}s`;
  const failing = rows?.filter(trouble).length;
  const sorted = rows && [...rows].sort((one, other) => Boolean(trouble(other)) - Boolean(trouble(one))
    || (other.state ? kind.weight(other.state) : 0) - (one.state ? kind.weight(one.state) : 0));
  return html`<section class="connector"><h2>${name} <span class="muted">${rows && `${more ? `the first ${count(rows.length)}` : count(rows.length)}${failing ? `, ${count(failing)} failing` : ""}`}</span></h2>
    ${error && html`<p class="fault-text">They cannot be listed: ${error.message}${rows ? ". What is shown is older." : ""}</p>`}
    ${!rows && !error && html`<p class="empty">Asking the owners …</p>`}
    ${rows?.length === 0 && html`<p class="muted">None yet.</p>`}
    ${rows?.length > 0 && html`<${Table} columns=${[[kind.noun], ...columns, ["state"]]} label=${name}>
      ${sorted.slice(0, most).map((one) => html`<tr key=${one.key} class=${trouble(one) ? "failing" : ""}>
        <td><a href=${to("key", topology, computation, keyPath(one.key))}><b>${keyText(one.key)}</b></a></td>
        ${columns.map(([title, number, of]) => html`<td key=${title} class=${number ? "num" : ""}>${one.state ? of(one.state, now) : ""}</td>`)}
        <td class=${trouble(one) ? "bad" : ""}>${trouble(one) || (one.state ? kind.state(one.state) : "nothing yet")}</td></tr>`)}</${Table}>`}
    ${rows?.length > most && html`<p><button class="link" onClick=${() => setMost(most * 5)}>More of ${plural(rows.length, kind.noun)}</button></p>`}
  </section>`;
}
