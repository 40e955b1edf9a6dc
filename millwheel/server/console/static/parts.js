// What several views share.

import { html, useEffect, useLayoutEffect, useRef, useState } from "/vendor/htm-preact-standalone.js";
import { call } from "/api.js";
import { failureText, moment, to } from "/format.js";
import { keyPath } from "/keys.js";

const EXPLAIN_MS = 3000;

export const Heading = ({ children, aside }) => html`
  <div class="head"><h1>${children}</h1>${aside && html`<div class="aside">${aside}</div>`}</div>`;

/** Escape leads to an address, while there is one. A listener of `useEffect` would come up to a frame after what it
 *  closes, and on a busy machine later: a key that is pressed before would have no effect. */
export function useEscape(address) {
  useLayoutEffect(() => {
    const pressed = (event) => { if (event.key === "Escape" && address && !event.defaultPrevented) location.hash = address; };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, [address]);
}

/** A sentence in which commands and code stand between backticks. */
export const Prose = ({ text }) => text.split("`").map((part, at) => (at % 2 ? html`<code>${part}</code>` : part));

/** The failure of what was tried last, if there is one. It is read out as soon as it comes. */
export const Failed = ({ failure }) => html`<div role="alert">${failure && html`<p class="fault-text"><${Prose} text=${failureText(failure)} /></p>`}</div>`;

/** A region that comes into sight when it appears: the plan of a change, which is confirmed here. */
export function Plan({ children }) {
  const shown = useRef();
  useEffect(() => { shown.current.scrollIntoView({ block: "nearest" }); }, []);
  return html`<div class="plan" ref=${shown} role="region" aria-label="What it will do">${children}</div>`;
}

export const Problems = ({ title, texts }) => texts.length > 0 && html`
  <section class="problems"><h2>${title}</h2><ul>${texts.map((text, at) => html`<li key=${at}><${Prose} text=${text} /></li>`)}</ul></section>`;

/** Where the cause of a problem is seen. */
function causeOf({ topology, computation, journal, key }) {
  if (topology && key) return ["the key", to("key", topology, computation, keyPath(key))];
  if (topology && journal) return ["the interval", to("keys", topology, computation, journal)];
  return topology ? ["the computation", to("topology", topology, computation)] : ["the cluster", to("cluster")];
}

/** The problems of the cluster. A leader of an earlier version says no details. */
export const problemsOf = (health) => health.problem_details?.length === health.problems.length ? health.problem_details : health.problems.map((text) => ({ text }));

/** Everything that needs an operator, or a part of it: each with the page of its cause, and the section of the runbook. */
export function HealthProblems({ health, about = () => true }) {
  const details = problemsOf(health).filter(about);
  return details.length > 0 && html`<section class="problems"><h2>Needs an operator</h2><ul>${details.map((one, at) => {
    const [name, address] = causeOf(one);
    return html`<li key=${at}><${Prose} text=${one.text} /> <span class="muted">— <a href=${address}>see ${name}</a>${one.runbook && html`, <a href=${`/runbook.html#${one.runbook.toLowerCase()}`}>runbook: ${one.runbook}</a>`}</span></li>`;
  })}</ul></section>`;
}

export const Figures = ({ of }) => html`
  <dl class="figures">${of.map(([name, value, unit]) => html`
    <div key=${name}><dt>${name}</dt><dd>${value}${unit && html` <small>${unit}</small>`}</dd></div>`)}</dl>`;

/** Columns: [title, is a number]. Rows are the table's body. */
export const Table = ({ columns, label, children }) => html`
  <div class="scroll" tabindex="0" role="region" aria-label=${label}><table>
    <thead><tr>${columns.map(([title, number]) => html`<th scope="col" class=${number ? "num" : ""}>${title}</th>`)}</tr></thead>
    <tbody>${children}</tbody></table></div>`;

/** A line of the last samples. It is decoration: the number stands beside it. */
export function Spark({ samples }) {
  if (!samples || samples.length < 2) return null;
  const top = Math.max(...samples, 1e-9);
  const points = samples.map((one, at) => `${((at / (samples.length - 1)) * 62).toFixed(1)} ${(14 - (one / top) * 13).toFixed(1)}`);
  return html`<svg class="spark" viewBox="0 0 62 15" preserveAspectRatio="none" aria-hidden="true"><path d=${`M${points.join("L")}`} /></svg>`;
}

/** What holds the low watermark of a computation: the chain of holds, and its cause. Asked again every few seconds.
 *  `shown`: a failure that stands on the page already. */
export function Hold({ topology, computation, shown = "" }) {
  const [found, setFound] = useState(null);
  useEffect(() => {
    let live = true;
    const ask = () => call("ClusterService/ExplainHold", { topology, computation })
      .then((answer) => live && setFound(answer), (error) => live && setFound({ error: error.message }));
    setFound(null);
    ask();
    const timer = setInterval(ask, EXPLAIN_MS);
    return () => { live = false; clearInterval(timer); };
  }, [topology, computation]);
  if (found === null) return html`<p class="muted">Asking the authority …</p>`;
  if (found.error) return html`<p class="bad">No explanation: ${found.error}</p>`;
  const notes = found.notes.join("\n");
  const failing = found.failing.filter((one) => !notes.includes(`${one.topology}/${one.computation}`));
  const texts = [...found.notes, ...failing.map((one) => one.text)].filter((text) => !shown || !text.startsWith(shown));
  return html`
    ${found.chain.length > 0 && html`<ol class="chain">${found.chain.map((step) => html`
      <li key=${step.name}>${step.text} <span class="muted">(${moment(step.low_watermark_us)})</span></li>`)}</ol>`}
    <p class="cause">${found.kind === "none" ? found.cause : `Held by ${found.cause}`}</p>
    ${texts.map((text) => html`<p class="fault-text" key=${text}><${Prose} text=${text} /></p>`)}
    ${found.remedy && html`<p><${Prose} text=${found.remedy} /></p>`}`;
}
