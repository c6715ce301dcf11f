// One turn of the conversation as people see it. A turn is plain data: `role`, `text`, and for answers `reasoning`, `model`, `note`, `error`.

class TurnView {
  constructor(turn) {
    this.turn = turn;
    const name = turn.role === "user" ? "You" : turn.model;
    this.text = make("div", { class: "text" });
    this.node = make("article", { class: `turn ${turn.role}`, "aria-label": name }, make("h2", {}, name));
    if (turn.role === "user") {
      this.node.append(this.text);
      say(this.text, turn.text);
      return;
    }
    this.thought = make("div", { class: "text" });
    this.reasoning = make("details", { class: "reasoning", hidden: "" }, make("summary", {}, "What it thought"), this.thought);
    this.error = make("p", { class: "error", role: "alert", hidden: "" });
    this.note = make("span", { class: "note" });
    this.copy = button("Copy", () => this.copyText());
    this.again = button("Ask again", () => askAgain(), { hidden: "" });
    this.node.append(this.reasoning, this.text, this.error, make("footer", {}, this.note, make("span", { class: "actions" }, this.copy, this.again)));
    this.show();
  }

  /** What the turn has by now. */
  show() {
    const { text, reasoning, note, error } = this.turn;
    renderMarkdown(this.text, text);
    this.reasoning.hidden = !reasoning;
    say(this.thought, reasoning);
    this.error.hidden = !error;
    say(this.error, error);
    say(this.note, note);
    this.copy.hidden = !text;
  }

  /** While an answer grows, it is not read out; once it is complete, all of it is. */
  set busy(busy) {
    this.node.setAttribute("aria-busy", String(busy));
    this.node.classList.toggle("busy", busy);
  }

  async copyText() {
    say(this.copy, (await copied(this.turn.text)) ? "Copied" : "Not allowed");
    setTimeout(() => say(this.copy, "Copy"), 1500);
  }
}

/** Put a text on the clipboard, also where the page came over plain HTTP from another machine. */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = make("textarea", { class: "aside", "aria-hidden": "true" });
    const focused = document.activeElement;
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    focused?.focus();
    return done;
  }
}
