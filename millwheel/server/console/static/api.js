// The data of the page: one request a second, and its history. Nothing is asked while the page is hidden.

const REFRESH_MS = 1000;
const PATIENCE_MS = 5000; // A request without an answer for so long has failed.
const KEPT_SAMPLES = 120;

/** Makes a call of the API. Throws an Error with `message`, `remedy` and `reason`. Without a request it is a GET, which the page has preloaded. */
export async function call(path, request) {
  const signal = AbortSignal.timeout(PATIENCE_MS);
  const posted = request && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(request) };
  const failed = (error) => new Error(error.name === "TimeoutError" ? "it takes too long to answer" : "it cannot be reached");
  let response;
  try {
    response = await fetch(`/api/v1/${path}`, { signal, ...posted });
  } catch (error) {
    throw failed(error);
  }
  // An answer may end before its end. An error may come from a proxy, without our JSON.
  const body = await response.json().catch((error) => { if (response.ok) throw failed(error); return {}; });
  if (response.status === 401 && body.error?.code === "UNAUTHENTICATED") location.assign("/login.html");
  if (!response.ok) {
    const error = new Error(body.error?.message ?? `status ${response.status}`);
    error.remedy = body.error?.remedy ?? "";
    error.reason = body.error?.reason ?? "";
    throw error;
  }
  return body;
}

let readOnly = true;
let user = { name: "", session: false };

/** Whether this page may change something. Known once `learnPermission` has ended. */
export const mayChange = () => !readOnly;

/** Who uses the page: the principal's name, empty without TLS, and whether a login began a session. */
export const whoAmI = () => user;

/** Ends the session. */
export async function logOut() {
  await fetch("/logout", { method: "POST", headers: { "Content-Type": "application/json" }, body: "{}" });
  location.assign("/login.html");
}

/** Asks what this page may do, and for whom. */
export async function learnPermission() {
  const response = await fetch("/api/v1");
  if (response.ok) ({ read_only: readOnly, user } = await response.json());
}

/** A person with roles for some topologies alone gets no health of the cluster. */
const NO_HEALTH = {
  hidden: true, masters: [], workers: [], authorities: [], store: { answers: true, read_seconds: 0 }, hot_keys: [], problems: [],
  intervals: { all: 0, without_owner: 0, with_parents: 0 },
};

/** Calls `changed(state)` after each refresh. The state: overview, since (of the answer), failure, history. */
export function follow(changed) {
  const state = { overview: null, since: 0, failure: null, history: new Map() };
  let timer = 0;
  let learned = false;
  const refresh = async () => {
    const began = performance.now();
    try {
      if (!learned) learnPermission().then(() => { learned = true; }, () => {});
      state.overview = await call("ClusterService/GetOverview");
      state.overview.health ??= NO_HEALTH;
      state.since = Date.now();
      state.failure = null;
      remember(state);
    } catch (error) {
      state.failure = error;
    }
    changed({ ...state });
    timer = document.hidden ? 0 : setTimeout(refresh, Math.max(REFRESH_MS - (performance.now() - began), 50));
  };
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && timer === 0) refresh();
  });
  refresh();
}

function remember({ overview, history }) {
  for (const topology of overview.topologies) {
    for (const one of topology.computations) {
      const name = `${topology.name}/${one.name}`;
      const rates = history.get(name) ?? [];
      rates.push(one.records_per_second);
      if (rates.length > KEPT_SAMPLES) rates.shift();
      history.set(name, rates);
    }
  }
}
