// The streams of all topologies: what they carry, who writes and reads them, and their logs. One of them: its log and its tail.

import { html, useEffect, useRef, useState } from "/vendor/htm-preact-standalone.js";
import { call } from "/api.js";
import { bytes, count, duration, failureText, lagText, moment, plural, rate, to } from "/format.js";
import { Figures, Heading, Prose, Table } from "/parts.js";

const COLUMNS = [["stream"], ["type"], ["from"], ["read by"], ["log"], ["records/s", true], ["kept", true], ["oldest", true], ["largest cursor lag", true]];
const REFRESH_MS = 1000;
const SHOWN = 200; // So many records stay on the page.
const FIRST = 50;

const behind = (kept, cursor) => Number(kept.end_offset) - Number(cursor.acked_offset);

/** Computations, and the cursors of the log. */
function readers(one) {
  const cursors = one.log?.kept?.cursors ?? [];
  const more = Number(one.log?.kept?.cursor_count ?? 0) - cursors.length;
  const names = [...one.read_by, ...cursors.map((cursor) => `cursor ${cursor.cursor}`), ...(more > 0 ? [`${count(more)} more cursors`] : [])];
  return names.length ? names.join(", ") : html`<span class="muted">none</span>`;
}

function LogState({ log }) {
  if (!log) return html`<span class="muted">not kept</span>`;
  return log.worker ? `kept by ${log.worker}` : html`<span class="bad">without an owner</span>`;
}

function Row({ one }) {
  const kept = one.log?.kept;
  const lags = (kept?.cursors ?? []).map((cursor) => behind(kept, cursor));
  return html`<tr><td><a href=${to("streams", ...one.name.split("/"))}><b>${one.name}</b></a></td><td><code>${one.record_type}</code></td>
    <td>${[...(one.injected ? ["injectors"] : []), ...one.written_by].join(", ")}</td><td>${readers(one)}</td><td><${LogState} log=${one.log} /></td>
    <td class="num">${one.log ? rate(one.log.records_per_second) : ""}</td><td class="num">${kept ? bytes(kept.kept_bytes) : ""}</td>
    <td class="num">${kept && kept.end_offset !== kept.first_offset ? duration(kept.oldest_seconds) : ""}</td><td class="num">${lags.length ? count(Math.max(...lags)) : ""}</td></tr>`;
}

export function Streams({ overview, path }) {
  const streams = overview.topologies.flatMap((one) => one.streams);
  const named = path.join("/");
  if (named) return html`<${OneStream} key=${named} name=${named} stream=${streams.find((one) => one.name === named)} now=${overview.now_us} />`;
  return html`
    <${Heading}>Streams</${Heading}>
    ${streams.length === 0 ? html`<p class="empty">No streams.</p>` : html`<${Table} columns=${COLUMNS} label="Streams">${streams.map((one) => html`<${Row} key=${one.name} one=${one} />`)}</${Table}>`}`;
}

function OneStream({ name, stream, now }) {
  const title = html`<${Heading}><a class="crumb" href="#/streams">Streams /</a> ${name}</${Heading}>`;
  if (!stream) return html`${title}<p class="empty">There is no such stream. <a href="#/streams">All streams</a></p>`;
  const { log } = stream;
  const kept = log?.kept;
  return html`${title}
    <${Figures} of=${[
      ["type", html`<code>${stream.record_type}</code>`],
      ...(stream.injected ? [["data lag", lagText(now, stream.watermark)]] : []),
      ...(log ? [["log", html`<${LogState} log=${log} />`], ["records/s", rate(log.records_per_second)]] : []),
      ...(kept ? [["records kept", count(Number(kept.end_offset) - Number(kept.first_offset))], ["size", bytes(kept.kept_bytes)], ["in memory", bytes(log.cached_bytes)],
        ["oldest", kept.end_offset === kept.first_offset ? "none" : duration(kept.oldest_seconds)]] : []),
      ...(log && log.created_at_us !== "0" ? [["kept since", `${moment(log.created_at_us).slice(0, 16)} UTC`]] : []),
    ]} />
    <dl class="facts"><dt>from</dt><dd>${[...(stream.injected ? ["injectors"] : []), ...stream.written_by].join(", ") || "another topology"}</dd><dt>read by</dt><dd>${readers(stream)}</dd></dl>
    ${kept?.cursors.length > 0 && html`<h2>Cursors</h2><${Table} label="Cursors" columns=${[["cursor"], ["acked", true], ["end", true], ["behind", true]]}>
      ${kept.cursors.map((one) => html`<tr key=${one.cursor}><td>${one.cursor}</td><td class="num">${count(one.acked_offset)}</td><td class="num">${count(kept.end_offset)}</td><td class="num">${count(behind(kept, one))}</td></tr>`)}</${Table}>`}
    ${log ? html`<${Tail} stream=${name} />` : html`<h2>Records</h2><p class="muted">Its records are not kept, so none can be shown. <code>millwheel stream tail ${name}</code> makes a log, which keeps them from then on.</p>`}`;
}

/** The last records, as they come. Nothing is asked while the page is hidden, or while it is paused. */
function Tail({ stream }) {
  const [state, setState] = useState({ records: null, error: null, skipped: 0 });
  const [paused, setPaused] = useState(false);
  const next = useRef(undefined);
  useEffect(() => {
    let live = true;
    let timer = 0;
    const ask = async () => {
      clearTimeout(timer);
      try {
        const answer = await call("StreamService/ReadStream", { stream, limit: next.current === undefined ? FIRST : SHOWN, from_offset: next.current });
        if (!live) return;
        setState((old) => {
          const gap = next.current !== undefined && answer.records.length ? Number(answer.records[0].offset) - Number(next.current) : 0;
          return { records: [...(old.records ?? []), ...answer.records].slice(-SHOWN), error: null, skipped: old.skipped + Math.max(gap, 0) };
        });
        // A page that is far behind goes on at the end: it shows what happens now.
        const far = Number(answer.end_offset) - Number(answer.next_offset) > SHOWN;
        const following = far ? String(Number(answer.end_offset) - FIRST) : answer.next_offset;
        if (far) setState((old) => ({ ...old, skipped: old.skipped + Number(following) - Number(answer.next_offset) }));
        next.current = following;
      } catch (error) {
        // Another log has begun, so the page begins again.
        const other = error.reason === "OFFSET_BEYOND_END";
        if (other) next.current = undefined;
        if (live) setState((old) => ({ ...old, records: other ? [] : old.records, error }));
      }
      if (live && !document.hidden) timer = setTimeout(ask, REFRESH_MS);
    };
    const seen = () => { if (!document.hidden && !paused) ask(); };
    document.addEventListener("visibilitychange", seen);
    if (!paused) { ask(); }
    return () => { live = false; clearTimeout(timer); document.removeEventListener("visibilitychange", seen); };
  }, [stream, paused]);
  const { records, error, skipped } = state;
  return html`<div class="head"><h2>Records</h2><div class="tools"><button aria-pressed=${paused} onClick=${() => setPaused(!paused)}>${paused ? "Go on" : "Pause"}</button></div>
      ${skipped > 0 && html`<span class="muted">${plural(skipped, "record")} not shown</span>`}</div>
    ${error && html`<p class="fault-text"><${Prose} text=${failureText(error)} /></p>`}
    ${records === null ? !error && html`<p class="empty">Asking the log's owner …</p>` : records.length === 0 ? html`<p class="muted">No record yet. New ones appear here.</p>` : html`
      <${Table} label="Records, the newest first" columns=${[["offset", true], ["timestamp (UTC)"], ["value"]]}>
        ${[...records].reverse().map((one) => html`<tr key=${one.offset}><td class="num">${count(one.offset)}</td><td class="mono fixed">${moment(one.timestamp_us)}</td><td class="wide mono">${one.text}${one.cut && html`<span class="muted"> … cut</span>`}</td></tr>`)}</${Table}>`}`;
}
