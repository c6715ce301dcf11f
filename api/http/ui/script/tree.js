// The actors under their supervisors, and under each queue the requests that it has. Whoever stays keeps its row, so rows do not flicker.

/** Make the rows of a list those of `items`: `create` makes a view with a `node`, `view.update(item)` fills it. */
function syncRows(list, items, keyOf, create) {
  const before = list.views ?? new Map();
  list.views = new Map();
  let next = list.firstElementChild;
  for (const item of items) {
    let key = keyOf(item);
    while (list.views.has(key)) key += "+"; // a client may use an id twice
    const view = before.get(key) ?? create(item);
    before.delete(key);
    list.views.set(key, view);
    view.update(item);
    if (view.node === next) next = next.nextElementSibling;
    else list.insertBefore(view.node, next);
  }
  for (const { node } of before.values()) node.remove();
}

class Tree {
  constructor(list) {
    this.list = list;
    this.handled = new Map(); // messages of each actor at the last look
    this.lookedAt = 0;
  }

  update({ overview, actors }) {
    const now = performance.now() / 1000;
    const passed = this.lookedAt ? now - this.lookedAt : 0;
    const known = new Set(actors.map(({ name }) => name));
    const rows = actors.map((actor) => {
      const before = this.handled.get(actor.name) ?? actor.handled;
      const rate = passed ? Math.max(0, actor.handled - before) / passed : 0;
      const model = overview.models.find(({ name }) => actor.name === `queue:${name}`);
      const device = overview.devices.find(({ name }) => actor.name === name || actor.name === `device:${name}`);
      return { key: actor.name, parent: actor.parent, actor, rate, model, device };
    });
    for (const path of overview.requests) {
      const queue = `queue:${path.model}`;
      rows.push({ key: `request ${path.id}`, parent: known.has(queue) ? queue : known.has("api") ? "api" : actors[0]?.name, path });
    }
    this.fill(this.list, rows, "");
    this.handled = new Map(actors.map(({ name, handled }) => [name, handled]));
    this.lookedAt = now;
  }

  fill(list, rows, parent) {
    const mine = rows.filter((row) => row.parent === parent);
    syncRows(list, mine, ({ key }) => key, (row) => (row.path ? new RequestRow() : new ActorRow()));
    for (const { key } of mine) {
      const { children } = list.views.get(key);
      if (children) this.fill(children, rows, key);
    }
  }
}

class ActorRow {
  constructor() {
    this.name = make("strong");
    this.kind = make("span", { class: "kind" });
    this.state = make("span", { class: "badge" });
    this.seats = make("span", { class: "seats", "aria-hidden": "true" });
    this.what = make("span", { class: "what" });
    this.inbox = make("span", { class: "inbox" });
    this.rate = make("span", { class: "rate" });
    this.children = make("ul");
    const dot = make("span", { class: "dot", "aria-hidden": "true" });
    const parts = [this.name, this.kind, this.state, this.seats, this.what, this.rate, this.inbox];
    const row = make("div", { class: "row" }, dot, ...parts);
    this.node = make("li", { class: "actor" }, row, this.children);
  }

  update({ actor, rate, model, device }) {
    const busy = actor.state === "handling" || rate > 0 || (device?.job ?? "") !== "";
    const bad = ["failed", "restarting"].includes(actor.state) || device?.state === "wedged";
    this.node.className = `actor ${bad ? "bad" : busy ? "active" : "idle"}`;
    say(this.name, actor.name);
    say(this.kind, actor.kind);
    const state = actor.state === "idle" ? (device?.state ?? "idle") : actor.state;
    this.state.hidden = state === "idle"; // most are, nearly always
    say(this.state, state);
    say(this.what, [...whatOf(actor, model, device)].join(" · "));
    say(this.rate, rate ? `${figure(rate)} messages/s` : "");
    say(this.inbox, `inbox ${actor.inbox} of ${actor.inbox_max}`);
    this.inbox.title = `at most ${actor.inbox_peak} so far`;
    this.inbox.classList.toggle("empty", actor.inbox === 0);
    this.showSeats(model);
  }

  showSeats(model) {
    const all = Math.min(model?.members_max ?? 0, 32);
    while (this.seats.children.length < all) this.seats.append(make("i"));
    while (this.seats.children.length > all) this.seats.lastElementChild.remove();
    [...this.seats.children].forEach((seat, place) => seat.classList.toggle("taken", place < model.members));
  }
}

function* whatOf(actor, model, device) {
  if (actor.message) yield `${actor.message} for ${seconds(actor.handling_seconds)}`;
  if (model?.members_max) yield `${model.members} of ${count(model.members_max, "seat")}`;
  if (model?.waiting) yield `${whole.format(model.waiting)} waiting`;
  if (model?.tokens_per_second) yield `${figure(model.tokens_per_second)} tokens/s`;
  if (device?.job) yield `${device.job} for ${seconds(device.job_seconds)}`;
  if (device) yield `${share(device.busy_share)} busy`;
  if (actor.pending) yield `${whole.format(actor.pending)} to be answered`;
  if (actor.restarts) yield count(actor.restarts, "restart");
}

class RequestRow {
  constructor() {
    this.id = make("span", { class: "id" });
    this.place = make("span", { class: "badge" });
    this.progress = new Bar();
    this.what = make("span", { class: "what" });
    this.node = make("li", { class: "request" }, make("div", { class: "row" }, this.id, this.place, this.what, this.progress.node));
  }

  update({ path }) {
    say(this.id, path.id.length > 14 ? `${path.id.slice(0, 12)}…` : path.id);
    this.id.title = path.id;
    say(this.place, path.place);
    this.place.className = `badge place-${path.place}`;
    say(this.what, [...wayOf(path)].join(" · "));
    const tokens = `${path.generated_tokens} of ${path.tokens_max} tokens`;
    this.progress.update(path.tokens_max ? path.generated_tokens / path.tokens_max : 0, tokens);
  }
}

function* wayOf(path) {
  yield seconds(path.age);
  if (path.waiting !== null) yield `waited ${seconds(path.waiting)}`;
  if (path.prompt !== null) yield `prompt ${seconds(path.prompt)}`;
  if (path.socket) yield `the client is behind by ${seconds(path.socket)}`;
  yield count(path.generated_tokens, "token");
  if (path.tokens_per_second) yield `${figure(path.tokens_per_second)}/s`;
  if (path.deadline_left !== null) yield `${seconds(path.deadline_left)} left`;
  if (path.label && path.label !== "anonymous") yield path.label;
}

class Bar {
  constructor() {
    this.fill = make("span");
    this.node = make("span", { class: "bar", role: "img" }, this.fill);
  }

  /** `part` is from 0 to 1. */
  update(part, text) {
    this.fill.style.width = `${100 * Math.min(1, Math.max(0, part))}%`;
    this.node.title = text;
    this.node.setAttribute("aria-label", text);
  }
}
