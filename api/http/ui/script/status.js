// The status view: asks for the server's state once a second, while it is seen.

const LOOK_MS = 1000;
const LOOK_AGAIN_MS = 3000; // after a failure
const FIGURES = {
  running: "running",
  waiting: "waiting",
  tokens_per_second: "tokens/s",
  prompt_tokens_per_second: "prompt tokens/s",
  requests_per_second: "requests/s",
  refused_per_second: "refused/s",
};
const MODEL_COLUMNS = [
  ["Model", ({ name }) => name],
  ["State", ({ state, backend }) => (backend ? `${state}, ${backend}` : state)],
  ["Seats", ({ members, members_max: all }) => (all ? `${members} of ${all}` : "–")],
  ["Waiting", ({ waiting }) => whole.format(waiting)],
  ["Tokens/s", ({ tokens_per_second: rate }) => figure(rate)],
  ["First token", ({ first_token: times }) => medianAndTail(times)],
  ["Between tokens", ({ token_interval: times }) => medianAndTail(times)],
  ["Reused", ({ reused_share: part }) => share(part)],
  ["Guessed right", ({ acceptance }) => (acceptance ? share(acceptance) : "–")],
];
const KEY_COLUMNS = [
  ["Key", ({ label }) => label],
  ["Running", ({ running }) => whole.format(running)],
  ["Waiting", ({ waiting }) => whole.format(waiting)],
  ["Share of tokens", ({ share: part }) => share(part)],
];

let looking = null; // the AbortController of the loop that looks

const tree = new Tree(byId("tree"));
const speedPlot = new Plot(byId("speed-plot"), [{ name: "tokens/s", of: (point) => point.tokens_per_second }]);
const queuePlot = new Plot(byId("queue-plot"), [
  { name: "running", of: ({ running }) => running },
  { name: "waiting", of: ({ waiting }) => waiting },
]);

function medianAndTail({ p50, p95 }) {
  return p50 === null ? "–" : `${seconds(p50)}, 95 %: ${seconds(p95)}`;
}

/** Begin or end looking, by whether anybody sees it. */
function lookWhileSeen() {
  const isSeen = location.hash === "#status" && document.visibilityState === "visible";
  if (isSeen && !looking) look((looking = new AbortController()).signal);
  if (!isSeen) {
    looking?.abort();
    looking = null;
  }
}

async function look(signal) {
  while (!signal.aborted) {
    let next = () => happens(LOOK_MS, signal);
    try {
      showStatus(await (await request("ui/state", { signal, quiet: true })).json());
      say(byId("status-problem"), "");
    } catch (error) {
      if (signal.aborted) return;
      say(byId("status-problem"), `The state cannot be shown: ${error.message}.`);
      const isRefused = error.status === 401 || error.status === 403;
      next = () => happens(isRefused ? Infinity : LOOK_AGAIN_MS, signal);
    }
    await next();
  }
}

/** After so many milliseconds, or as soon as another key was entered, or `signal` ended it. */
function happens(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = Number.isFinite(milliseconds) ? setTimeout(resolve, milliseconds) : 0;
    document.addEventListener("key", resolve, { once: true, signal });
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    }, { once: true });
  });
}

function showStatus(state) {
  const { overview } = state;
  const health = byId("health");
  say(health, overview.status);
  health.className = `badge health-${overview.status}`;
  say(byId("server"), `tripower ${overview.version}, process ${overview.pid}, up ${seconds(overview.uptime_seconds)}`);
  say(byId("reasons"), overview.reasons.join("; "));
  const figures = Object.entries(FIGURES).map(([field, name]) => ({ name, value: overview[field] }));
  syncRows(byId("figures"), figures, ({ name }) => name, ({ name }) => new FigureCard(name));
  speedPlot.draw(overview.history, [overview.tokens_per_second]);
  queuePlot.draw(overview.history, [overview.running, overview.waiting]);
  tree.update(state);
  showTable(byId("models"), MODEL_COLUMNS, overview.models, ({ name }) => name);
  byId("keys-section").hidden = !overview.identities.some(({ label }) => label !== "anonymous");
  showTable(byId("keys"), KEY_COLUMNS, overview.identities, ({ label }) => label);
}

class FigureCard {
  constructor(name) {
    this.value = make("dd");
    this.node = make("div", {}, make("dt", {}, name), this.value);
  }

  update({ value }) {
    say(this.value, figure(value));
  }
}

class TableRow {
  constructor(columns) {
    this.columns = columns;
    this.cells = columns.map(([name]) => make("td", { "data-label": name }));
    this.node = make("tr", {}, ...this.cells);
  }

  update(item) {
    this.columns.forEach(([, of], place) => say(this.cells[place], of(item)));
  }
}

function showTable(table, columns, items, keyOf) {
  if (!table.tHead) {
    const names = columns.map(([name]) => make("th", { scope: "col" }, name));
    table.append(make("thead", {}, make("tr", {}, ...names)), make("tbody"));
  }
  syncRows(table.tBodies[0], items, keyOf, () => new TableRow(columns));
}
