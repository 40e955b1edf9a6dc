// The frame of the console: the list of views, the state of the server, and the view that the address names.

import { html, render, useEffect, useRef, useState } from "/vendor/htm-preact-standalone.js";
import { follow, logOut, whoAmI } from "/api.js";
import { clock, count, plural, to } from "/format.js";
import { Topologies } from "/views/topologies.js";
import { Graph } from "/views/graph.js";
import { Time } from "/views/time.js";
import { Events } from "/views/events.js";
import { Key } from "/views/key.js";
import { Keys } from "/views/keys.js";
import { Streams } from "/views/streams.js";
import { Injectors } from "/views/injectors.js";
import { Letters } from "/views/letters.js";
import { Cluster } from "/views/cluster.js";

const VIEWS = [
  ["topologies", "Topologies", Topologies],
  ["time", "Time", Time],
  ["keys", "Keys", Keys],
  ["streams", "Streams", Streams],
  ["injectors", "Injectors", Injectors],
  ["letters", "Dead letters", Letters],
  ["cluster", "Cluster", Cluster],
  ["events", "Events", Events],
];

const place = () => location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decodeURIComponent);

function counts(overview) {
  if (!overview) return {};
  const failing = overview.topologies.flatMap((one) => one.computations).filter((one) => one.failures).length;
  const unhandled = overview.topologies.reduce((sum, one) => sum + Number(one.unhandled_letters), 0);
  return {
    topologies: failing ? [`${failing} failing`, "bad"] : [overview.topologies.length],
    streams: [overview.topologies.reduce((sum, one) => sum + one.streams.length, 0)],
    injectors: [overview.injectors.filter((one) => !one.retired).length],
    letters: unhandled ? [count(unhandled), "bad"] : [],
    cluster: overview.health.problems.length ? [plural(overview.health.problems.length, "problem"), "bad"] : [],
  };
}

function Rail({ view, overview, since }) {
  const shown = counts(overview);
  return html`<nav class="rail" aria-label="Views">
    <div class="brand"><img src="/icon.svg" alt="" />MillWheel</div>
    ${VIEWS.map(([name, title], index) => {
      const [text, kind] = shown[name] ?? [];
      return html`<a key=${name} class="view" href=${to(name)} aria-current=${view === name ? "page" : null} accesskey=${index + 1}
        title=${`Key ${index + 1}`}>${title}<span class=${`count ${kind ?? ""}`}>${text}</span></a>`;
    })}
    <div class="foot">${since ? html`<div>as of ${clock(since)} UTC</div>` : null}<${User} /><a href="/api/v1">API</a></div>
  </nav>`;
}

/** Who is logged in. */
function User() {
  const { name, session } = whoAmI();
  return name && html`<div>${name}${session ? html` · <button class="link" onClick=${logOut}>Log out</button>` : null}</div>`;
}

/** Links to the consoles of the other masters, at the place that is shown. */
function Others({ overview }) {
  const urls = (overview?.health.masters ?? []).map((one) => one.console).filter((url) => /^https?:/.test(url) && new URL(url).origin !== location.origin);
  return urls.length > 0 && html`<div>Other masters serve it, too: ${urls.map((url) => html`<a key=${url} href=${url + location.hash}>${url}</a> `)}</div>`;
}

function View({ path, state }) {
  const [name, ...rest] = path;
  if (name === "topology") return html`<${Graph} name=${rest[0]} selected=${rest[1]} ...${state} />`;
  if (name === "key") return html`<${Key} path=${rest} />`;
  const found = VIEWS.find(([one]) => one === name) ?? VIEWS[0];
  return html`<${found[2]} path=${rest} ...${state} />`;
}

function Console() {
  const [state, setState] = useState({ overview: null, since: 0, failure: null, history: new Map() });
  const [path, setPath] = useState(place());
  const main = useRef();
  useEffect(() => follow(setState), []);
  useEffect(() => {
    const moved = () => setPath(place());
    const pressed = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
      const view = VIEWS[Number(event.key) - 1];
      if (view) { location.hash = to(view[0]); main.current.focus(); }
    };
    addEventListener("hashchange", moved);
    addEventListener("keydown", pressed);
    return () => { removeEventListener("hashchange", moved); removeEventListener("keydown", pressed); };
  }, []);
  const view = { topology: "topologies", key: "keys" }[path[0]] ?? path[0] ?? "topologies";
  const title = [path[1], VIEWS.find(([name]) => name === view)?.[1], "MillWheel"].filter(Boolean).join(" · ");
  useEffect(() => { document.title = title; }, [title]);
  const { overview, since, failure } = state;
  useEffect(() => { if (overview) performance.mark("data-shown"); }, [overview !== null]);
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>Skip to content</a>
    <div role="status">${failure && html`<div class="banner">
      ${since ? `No answer since ${clock(since)} UTC: ${failure.message}. What is shown is from then.` : `The server does not answer: ${failure.message}.`}
      <${Others} overview=${overview} />
    </div>`}</div>
    <div class=${`frame ${failure ? "old" : ""}`}>
      <${Rail} view=${view} overview=${overview} since=${since} />
      <main id="main" tabindex="-1" ref=${main}>
        ${overview ? html`<${View} path=${path} state=${state} />` : html`<p class="empty">${failure ? "" : "Loading …"}</p>`}
      </main>
    </div>`;
}

render(html`<${Console} />`, document.getElementById("app"));
