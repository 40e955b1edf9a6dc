// The replay and the discarding of dead letters. Each is planned by the server first, and done when it is confirmed.

import { html, useRef, useState } from "/vendor/htm-preact-standalone.js";
import { call, mayChange } from "/api.js";
import { count, plural } from "/format.js";
import { Failed, Plan, Prose } from "/parts.js";

const AT_ONCE = 100; // So many letters are handled by one request, so that the page shows how far it is.
const CALLS = { replay: "LetterHandlingService/ReplayLetters", discard: "LetterHandlingService/DiscardLetters" };
const VERBS = { replay: "Replay", discard: "Discard" };
const NAMED = 12; // So many ids are named. Of more, the first ones.

export const ids = (all) => `${all.slice(0, NAMED).join(", ")}${all.length > NAMED ? ", …" : ""}`;

const Refused = ({ refused, verb }) => refused.map(({ reason, ids: which }) => html`
  <p class="warn" key=${reason}>Not ${verb}: ${plural(which.length, "letter")} (${ids(which)}): <${Prose} text=${reason} /></p>`);

/** What became of the letters so far. `left`: how many no request will handle now. */
function report(kind, parts, left = 0) {
  const why = parts.find((one) => one.why_unconfirmed)?.why_unconfirmed;
  const sum = (field) => parts.reduce((total, one) => total + (one[field]?.length ?? 0), 0);
  return [
    kind === "replay" ? `${plural(sum("replayed"), "letter")} replayed.` : `${plural(sum("discarded"), "letter")} discarded.`,
    sum("elsewhere") && `${count(sum("elsewhere"))} handled by others.`,
    sum("in_replay") && `${count(sum("in_replay"))} left alone: their replay has begun.`,
    sum("unconfirmed") && `${count(sum("unconfirmed"))} without an ACK yet: ${why}. Replay them again to complete that.`,
    left && `${count(left)} not handled yet${why && !sum("unconfirmed") ? `: ${why}` : ""}.`,
  ].filter(Boolean).join(" ");
}

/** `choices`: [text, selection of letters, whether there are any]. `handled` is called after a change. */
export function Handling({ topology, choices, handled }) {
  const [wanted, setWanted] = useState(null); // {kind, selection}
  const [plan, setPlan] = useState(null);
  const [also, setAlso] = useState(false);
  const [failure, setFailure] = useState(null);
  const [busy, setBusy] = useState(false);
  const [said, setSaid] = useState("");
  const [refused, setRefused] = useState([]);
  const asked = useRef(null); // The newest question. An older answer counts no more, nor one that was cancelled.
  const attempt = async (work) => {
    setFailure(null);
    try { await work(); } catch (error) { setFailure(error); setPlan(null); }
  };
  const cancel = () => { asked.current = null; setWanted(null); setPlan(null); setFailure(null); setAlso(false); };
  // No button is disabled for a question: a disabled one would lose the focus, and Escape its effect.
  const ask = (kind, selection, inReplay) => attempt(async () => {
    const mine = (asked.current = {});
    setPlan(null);
    setWanted({ kind, selection });
    setSaid("");
    setRefused([]);
    const answer = await call("LetterHandlingService/PlanLetterHandling", { topology, letters: selection, discard: kind === "discard", also_in_replay: inReplay });
    if (asked.current === mine) setPlan(answer);
  });
  const confirm = () => attempt(async () => {
    const { kind } = wanted;
    const request = plan[kind];
    const parts = [];
    let left = request.ids;
    setBusy(true);
    try {
      while (left.length) {
        const some = left.slice(0, AT_ONCE);
        const made = await call(CALLS[kind], { ...request, ids: some });
        parts.push(made);
        left = [...(made.left ?? []), ...left.slice(AT_ONCE)];
        setSaid(`${report(kind, parts)} ${count(request.ids.length - left.length)} of ${count(request.ids.length)} handled.`);
        // What its owner does not take now, it would not take from the next request.
        if (made.unconfirmed?.length || made.left?.length === some.length) break;
      }
    } finally {
      setBusy(false);
      // What was done before an error stays said.
      if (parts.length) setSaid(report(kind, parts, left.length));
      setRefused(parts.flatMap((one) => one.refused ?? []));
      handled();
    }
    cancel();
  });
  const pressed = (event) => { if (event.key === "Escape" && wanted) { event.preventDefault(); event.stopPropagation(); cancel(); } };
  if (!mayChange()) return html`<p class="muted">This console is read-only. <code>millwheel dead-letter replay ${topology} ID…</code> and <code>millwheel dead-letter discard ${topology} ID…</code> handle letters.</p>`;
  const verb = wanted && VERBS[wanted.kind];
  return html`<div class="handling" onKeyDown=${pressed}>
    <div class="tools" role="group" aria-label="Handle letters">
      ${choices.flatMap(([text, selection, some]) => ["replay", "discard"].map((kind) => html`<button key=${`${kind} ${text}`} disabled=${busy || !some} onClick=${() => ask(kind, selection, false)}>${VERBS[kind]} ${text} …</button>`))}
    </div>
    <div role="status">${said && html`<p class="good">${said}</p>`}</div>
    <${Refused} refused=${refused} verb="replayed" />
    ${plan && html`<${Plan}>
      ${plan[wanted.kind]
        ? html`<ul>${plan.effects.map((text) => html`<li key=${text}><${Prose} text=${text} /></li>`)}${plan.more && html`<li>More letters are left over. Do it again for those.</li>`}</ul>`
        : html`<p>There is no letter to ${wanted.kind}.</p>`}
      <${Refused} refused=${plan.refused} verb=${wanted.kind === "replay" ? "replayed" : "discarded"} />
      ${wanted.kind === "discard" && html`<label class="check"><input type="checkbox" name="also" checked=${also} onChange=${(event) => { setAlso(event.target.checked); ask("discard", wanted.selection, event.target.checked); }} /> also letters whose replay has begun</label>`}
      <div class="tools">${plan[wanted.kind] && html`<button class="primary" disabled=${busy} onClick=${confirm}>${verb} ${plural(plan[wanted.kind].ids.length, "letter")}</button>`}<button onClick=${cancel}>Cancel</button></div>
    </${Plan}>`}
    <${Failed} failure=${failure} />
  </div>`;
}
