// The chat: a conversation that this browser keeps, one request at a time.

const CONVERSATION = "tripower.conversation";
const SETTINGS = "tripower.settings";
const MODEL = "tripower.model";
const COMPLETION_TOKENS = 256; // of a plain continuation where nothing is set, since the server's own limit is short
const NUMBERS = ["temperature", "max_tokens", "seed"];

const isTurn = (turn) => (turn?.role === "user" || turn?.role === "assistant") && typeof turn.text === "string";
const turns = kept(CONVERSATION, [], (value) => Array.isArray(value) && value.every(isTurn));
const views = [];
const plainModels = new Set(); // those that turned out to have no chat template
let running = null; // the AbortController of the answer that is being written

function startChat() {
  turns.forEach(showTurn);
  const settings = kept(SETTINGS, {}, (value) => value !== null && typeof value === "object");
  for (const field of settingFields()) {
    if (typeof settings[field.name] === "string") field.value = settings[field.name];
    field.addEventListener("change", () =>
      keep(SETTINGS, Object.fromEntries(settingFields().map(({ name, value }) => [name, value]))),
    );
  }
  byId("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  byId("prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  byId("prompt").addEventListener("input", fitPrompt);
  byId("stop").addEventListener("click", stop);
  byId("new").addEventListener("click", beginAnew);
  byId("model").addEventListener("change", () => keep(MODEL, byId("model").value));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && running && !byId("key-dialog").open) stop();
  });
  addEventListener("pagehide", saveConversation);
  showState();
  scrollDown();
  loadModels();
}

function settingFields() {
  return [...byId("settings").querySelectorAll("input, textarea")];
}

/** Fill the picker; the model that was chosen last stays chosen. */
async function loadModels() {
  const picker = byId("model");
  try {
    const { data } = await (await request("v1/models")).json();
    const wanted = picker.value || kept(MODEL, "", (value) => typeof value === "string");
    picker.replaceChildren(...data.map(({ id }) => make("option", { value: id }, id)));
    if (data.some(({ id }) => id === wanted)) picker.value = wanted;
    say(byId("chat-problem"), data.length ? "" : "No model is served.");
  } catch (error) {
    say(byId("chat-problem"), `The models cannot be listed: ${error.message}.`);
  }
}

function send() {
  const text = byId("prompt").value;
  if (running || !text.trim()) return;
  byId("prompt").value = "";
  fitPrompt();
  ask(text);
}

/** Ask, and write the answer below as it comes. What goes wrong is told in the answer's place. */
async function ask(text) {
  if (!byId("model").value) await loadModels();
  const model = byId("model").value;
  const turn = { role: "assistant", text: "", reasoning: "", model, note: "", error: "" };
  turns.push({ role: "user", text }, turn);
  turns.slice(-2).forEach(showTurn);
  const view = views.at(-1);
  running = new AbortController();
  view.busy = true;
  showState();
  saveConversation();
  scrollDown();
  const writing = new Writing(turn, view);
  try {
    await writing.run(model, running.signal);
  } catch (error) {
    if (running.signal.aborted) writing.stopped();
    else turn.error = `${error.message || error}`;
  }
  running = null;
  writing.end();
  view.busy = false;
  showState();
  saveConversation();
}

function askAgain() {
  if (running || turns.length < 2) return;
  const [{ text }] = turns.splice(-2);
  views.splice(-2).forEach(({ node }) => node.remove());
  ask(text);
}

function stop() {
  running?.abort();
  byId("prompt").focus();
}

function beginAnew() {
  stop();
  turns.length = views.length = 0;
  byId("log").replaceChildren();
  saveConversation();
  showState();
}

/** One answer on its way: what has come, how fast, and when it is painted. */
class Writing {
  constructor(turn, view) {
    this.turn = turn;
    this.view = view;
    this.began = performance.now();
    this.first = 0; // when the first token came
    this.tokens = 0;
    this.frame = 0;
  }

  async run(model, signal) {
    const [path, body] = question(model, this.turn);
    try {
      await this.read(await request(path, { method: "POST", body, signal }));
    } catch (error) {
      if (error.code !== "chat_template_missing" || plainModels.has(model)) throw error;
      plainModels.add(model);
      await this.run(model, signal);
    }
  }

  async read(answer) {
    let timings, usage, reason;
    for await (const event of events(answer)) {
      const choice = event.choices?.[0];
      if (choice) this.take(choice);
      timings = event.timings ?? timings;
      usage = event.usage ?? usage;
      reason = choice?.finish_reason ?? reason;
    }
    const speed = timings?.predicted_per_second || this.speed();
    const tokens = usage?.completion_tokens ?? this.tokens;
    this.turn.note = this.figures(tokens, speed, reason === "length" ? "cut at the limit of tokens" : "");
  }

  take({ delta, text, finish_reason: reason }) {
    const piece = text ?? delta?.content ?? "";
    const thought = delta?.reasoning_content ?? "";
    this.turn.text += piece;
    this.turn.reasoning += thought;
    if (piece || thought) this.first ||= performance.now();
    if (this.first && !reason) this.tokens += 1;
    this.frame ||= requestAnimationFrame(() => this.paint());
  }

  paint() {
    this.frame = 0;
    const atEnd = isAtEnd();
    this.turn.note = this.figures(this.tokens, this.speed(), "");
    this.view.show();
    if (atEnd) scrollDown();
  }

  /** Tokens a second since the first one. */
  speed() {
    const passed = performance.now() - this.first;
    return this.tokens > 1 && passed > 0 ? (1000 * (this.tokens - 1)) / passed : 0;
  }

  figures(tokens, speed, remark) {
    const parts = [count(tokens, "token")];
    if (speed) parts.push(`${figure(speed)} tokens/s`);
    if (this.first) parts.push(`first after ${seconds((this.first - this.began) / 1000)}`);
    if (plainModels.has(this.turn.model)) parts.push("continued as plain text: this model has no chat template");
    if (remark) parts.push(remark);
    return parts.join(" · ");
  }

  stopped() {
    this.turn.note = this.figures(this.tokens, this.speed(), "stopped");
  }

  end() {
    cancelAnimationFrame(this.frame);
    const atEnd = isAtEnd();
    this.view.show();
    if (atEnd) scrollDown();
  }
}

/** Path and body of the request for an answer to everything before this turn. */
function question(model, turn) {
  const settings = Object.fromEntries(settingFields().map(({ name, value }) => [name, value]));
  const body = { model, stream: true, stream_options: { include_usage: true } };
  for (const name of NUMBERS) if (settings[name].trim() !== "") body[name] = Number(settings[name]);
  const before = answered(turns.slice(0, turns.indexOf(turn)));
  if (plainModels.has(model)) {
    const prompt = before.map(({ text }) => text).join("\n");
    return ["v1/completions", { max_tokens: COMPLETION_TOKENS, ...body, prompt }];
  }
  const messages = before.map(({ role, text }) => ({ role, content: text }));
  if (settings.system.trim()) messages.unshift({ role: "system", content: settings.system });
  return ["v1/chat/completions", { ...body, messages }];
}

/** The turns without questions that got no answer: templates want question and answer to alternate. */
function answered(all) {
  return all.filter(({ role, text }, place) => {
    const answer = role === "user" ? all[place + 1] : { text };
    return answer === undefined || answer.text !== "";
  });
}

function saveConversation() {
  keep(CONVERSATION, turns);
}

// What is seen.

function showTurn(turn) {
  const view = new TurnView(turn);
  views.push(view);
  byId("log").append(view.node);
}

function showState() {
  byId("send").hidden = running !== null;
  byId("stop").hidden = running === null;
  byId("welcome").hidden = turns.length > 0;
  say(byId("chat-state"), running ? "The answer is being written." : "");
  views.forEach((view, place) => {
    if (view.again) view.again.hidden = running !== null || place !== views.length - 1;
  });
}

function fitPrompt() {
  const prompt = byId("prompt");
  prompt.style.height = "auto";
  prompt.style.height = `${Math.min(prompt.scrollHeight + 2, innerHeight / 3)}px`;
}

function isAtEnd() {
  const log = byId("log");
  return log.scrollHeight - log.scrollTop - log.clientHeight < 60;
}

function scrollDown() {
  const log = byId("log");
  log.scrollTop = log.scrollHeight;
}
