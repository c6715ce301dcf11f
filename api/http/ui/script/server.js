// Asking the server. The key, where one is needed, is kept for this tab only and travels in a header.

const BASE = new URL("..", import.meta.url);
const KEY = "tripower.key";
const PLAIN = /^[\x21-\x7e]+$/;

class ServerError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** One request. Asks for a key when one is needed, unless `quiet`. Throws ServerError, or AbortError where `signal` ends it. */
async function request(path, { method = "GET", body, signal, quiet = false } = {}) {
  for (;;) {
    const key = sessionStorage.getItem(KEY) ?? "";
    const answer = await attempt(path, key, method, body, signal);
    if (answer.ok) return answer;
    const error = await failure(answer);
    if (answer.status !== 401) throw error;
    byId("key-button").hidden = false;
    const isCurrent = key === (sessionStorage.getItem(KEY) ?? "");
    if (isCurrent && quiet) throw error;
    if (isCurrent) await askForKey(key ? error.message : "", error);
  }
}

async function attempt(path, key, method, body, signal) {
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  if (body !== undefined) headers["content-type"] = "application/json";
  const options = { method, headers, signal, credentials: "omit", cache: "no-store", redirect: "error" };
  if (body !== undefined) options.body = JSON.stringify(body);
  try {
    return await fetch(new URL(path, BASE), options);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ServerError(0, "unreachable", "the server cannot be reached");
  }
}

async function failure(answer) {
  try {
    const { error } = await answer.json();
    return new ServerError(answer.status, error.code, error.message);
  } catch {
    return new ServerError(answer.status, "unreadable", `the server answered ${answer.status}`);
  }
}

/** The events of a stream. Throws ServerError for one that says so, and where the stream ends before its end mark. */
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read().catch(() => ({ done: true }));
    if (done) throw new ServerError(0, "broken_off", "the connection broke off before the answer was complete");
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      if (!block.startsWith("data: ")) continue; // a comment keeps an idle stream alive
      const data = block.slice(6);
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new ServerError(0, event.error.code, event.error.message);
      yield event;
    }
  }
}

// The key.

let asking = null;

/** Until a key was entered; many may wait for the same one. Throws `error` where the dialog is closed without one. */
function askForKey(message, error) {
  asking ??= new Promise((resolve, reject) => {
    const dialog = byId("key-dialog");
    say(byId("key-message"), message);
    byId("key").value = "";
    dialog.onclose = () => {
      asking = null;
      if (dialog.returnValue === "entered") resolve();
      else reject(error);
    };
    dialog.returnValue = "";
    dialog.showModal();
  });
  return asking;
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = byId("key").value.trim();
  if (key && !PLAIN.test(key)) {
    say(byId("key-message"), "a key has only letters, digits and plain signs");
    return;
  }
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
  byId("key-dialog").close("entered");
  document.dispatchEvent(new Event("key"));
});
byId("key-cancel").addEventListener("click", () => byId("key-dialog").close("cancelled"));
