// The frame of the console: the list of views, the state of the server, and the view that the address names.

import { html, render, useEffect, useRef, useState } from "/vendor/htm-preact-standalone.js";
import { follow, logOut, whoAmI } from "/api.js";
import { clock, count, plural, to } from "/format.js";
import { Heading, problemsOf } from "/parts.js";
import { Topologies } from "/views/topologies.js";

// The first view comes with the page. The others are loaded when they are opened, or when the page has nothing to do.
const VIEWS = [
  ["topologies", "Topologies"],
  ["time", "Time"],
  ["keys", "Keys"],
  ["streams", "Streams"],
  ["injectors", "Injectors"],
  ["letters", "Dead letters"],
  ["cluster", "Cluster"],
  ["events", "Events"],
];
const LOADERS = {
  topology: () => import("/views/graph.js").then((it) => it.Graph),
  time: () => import("/views/time.js").then((it) => it.Time),
  keys: () => import("/views/keys.js").then((it) => it.Keys),
  key: () => import("/views/key.js").then((it) => it.Key),
  streams: () => import("/views/streams.js").then((it) => it.Streams),
  injectors: () => import("/views/injectors.js").then((it) => it.Injectors),
  letters: () => import("/views/letters.js").then((it) => it.Letters),
  cluster: () => import("/views/cluster.js").then((it) => it.Cluster),
  events: () => import("/views/events.js").then((it) => it.Events),
};
const LOAD_REST_AFTER_MS = 1500;
const loaded = new Map([["topologies", Topologies]]);
const load = (name) => LOADERS[name]().then((view) => { loaded.set(name, view); });

/** The component of a view. Null: it is being loaded. An Error: it cannot be. */
function useView(name) {
  const [failure, setFailure] = useState(null);
  const [, again] = useState(0);
  useEffect(() => {
    setFailure(null);
    if (!loaded.has(name)) load(name).then(() => again((count) => count + 1), setFailure);
  }, [name]);
  return loaded.get(name) ?? failure;
}

const place = () => location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decodeURIComponent);

/** The list of views has no entry for one topology, or for one key. */
const listOf = (name) => ({ topology: "topologies", key: "keys" })[name] ?? name ?? "topologies";
const titleOf = (name) => VIEWS.find(([one]) => one === listOf(name))?.[1];

function counts(overview) {
  if (!overview) return {};
  // Each problem counts once: with the topologies if it is about one of them, else with the cluster.
  const problems = problemsOf(overview.health);
  const failing = problems.filter((one) => one.topology).length;
  const others = problems.length - failing;
  const unhandled = overview.topologies.reduce((sum, one) => sum + Number(one.unhandled_letters), 0);
  return {
    topologies: failing ? [plural(failing, "problem"), "bad"] : [overview.topologies.filter((one) => one.state !== "TOPOLOGY_STATE_CANCELLED").length],
    streams: [overview.topologies.reduce((sum, one) => sum + one.streams.length, 0)],
    injectors: [overview.injectors.filter((one) => !one.retired).length],
    letters: unhandled ? [count(unhandled), "bad"] : [],
    cluster: others ? [plural(others, "problem"), "bad"] : [],
  };
}

function Rail({ view, overview, since }) {
  const shown = counts(overview);
  return html`<nav class="rail" aria-label="Views">
    <div class="brand"><img src="/icon.svg" alt="" />MillWheel</div>
    ${VIEWS.map(([name, title], index) => {
      const [text, kind] = shown[name] ?? [];
      return html`<a key=${name} class="view" href=${to(name)} aria-current=${view === name ? "page" : null} accesskey=${index + 1}
        title=${`Key ${index + 1}`}>${title}${" "}<span class=${`count ${kind ?? ""}`}>${text}</span></a>`;
    })}
    <div class="foot">${since ? html`<div>as of ${clock(since)} UTC</div>` : null}<${User} /><a href="/runbook.html">Runbook</a> · <a href="/api/v1">API</a></div>
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
  const named = name in LOADERS ? name : "topologies";
  const view = useView(named);
  const heading = html`<${Heading}>${titleOf(name)}</${Heading}>`;
  if (view === null) return html`${heading}<p class="empty">Loading …</p>`;
  if (view instanceof Error) return html`${heading}<p class="fault-text">This view cannot be loaded: the server does not answer. <button class="link" onClick=${() => location.reload()}>Load the page again</button></p>`;
  if (named === "topology") return html`<${view} name=${rest[0]} selected=${rest[1]} ...${state} />`;
  return html`<${view} path=${rest} ...${state} />`;
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
  const view = listOf(path[0]);
  const title = [path[1], titleOf(path[0]), "MillWheel"].filter(Boolean).join(" · ");
  useEffect(() => { document.title = title; }, [title]);
  const { overview, since, failure } = state;
  useEffect(() => {
    if (!overview) return;
    performance.mark("data-shown");
    setTimeout(() => Promise.all(Object.keys(LOADERS).filter((name) => !loaded.has(name)).map(load)).catch(() => {}), LOAD_REST_AFTER_MS);
  }, [overview !== null]);
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>Skip to content</a>
    <div role="status">${failure && html`<div class="banner">
      ${since ? `No answer since ${clock(since)} UTC: ${failure.message}. What is shown is from then.` : `The server does not answer: ${failure.message}.`}
      <${Others} overview=${overview} />
    </div>`}</div>
    <div class=${`frame ${failure ? "old" : ""}`}>
      <${Rail} view=${view} overview=${overview} since=${since} />
      <main id="main" tabindex="-1" ref=${main}>
        ${overview ? html`<${View} path=${path} state=${state} />` : html`<${Heading}>${titleOf(path[0])}</${Heading}><p class="empty">${failure ? "" : "Loading …"}</p>`}
      </main>
    </div>`;
}

render(html`<${Console} />`, document.getElementById("app"));
