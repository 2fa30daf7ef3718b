// The page: a conversation, its options, the device's documents, and what this browser keeps.

import { ApiError, ask, setKey } from "./api.js";
import { keepConversation, openConversation } from "./conversations.js";
import { showDetail } from "./detail.js";
import { DocumentsPanel } from "./documents.js";
import { byId, make } from "./dom.js";
import { capitalize } from "./format.js";
import { HistoryPanel } from "./history.js";
import { LinkStatus } from "./link.js";
import { Options, setTheme } from "./options.js";
import { begin, isUnfinished, missingParties, queryOf, textOf } from "./transcript.js";
import { Turn } from "./turn.js";

const ROLES = ["device", "cloud", "server"]; // other parties have names of their own
const NEAR_END_PX = 160;
const WIDE = "(min-width: 62rem)";
const OPEN = "tandem.open"; // the conversation of this tab, which a reload shows again

class Page {
  constructor() {
    this.options = new Options();
    this.link = new LinkStatus((status) => {
      this.options.offer(status);
      this.offerExamples(status.examples);
      welcome(status);
      showToys(status);
    });
    this.documents = new DocumentsPanel(announce);
    this.history = new HistoryPanel((id) => this.reopen(id), (id) => this.forget(id));
    this.abort = null; // of the answer that runs
    this.open(sessionStorage.getItem(OPEN) ?? newId());
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask(byId("question").value.trim());
    });
    byId("question").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        byId("composer").requestSubmit();
      }
    });
    byId("question").addEventListener("input", fitQuestion);
    byId("stop").addEventListener("click", () => this.abort?.abort());
    byId("new").addEventListener("click", () => this.startNew());
    document.addEventListener("keydown", (event) => event.key === "Escape" && showDetail(null));
    addEventListener("scroll", () => showDetail(null), { passive: true });
    addEventListener("pagehide", () => this.keepRunning());
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "hidden") this.keepRunning();
      else if (this.turns.at(-1)?.state.isBroken) this.askAgain(); // as after a phone was locked
    });
    openPanels();
  }

  /** Show how the server and its documents are, and ask again for an answer that came when the page was left. */
  async start() {
    await this.meet(() => this.link.poll());
    await Promise.all([this.askAgain(), this.meet(() => this.documents.refresh())]);
  }

  /** Do what needs the server; ask for its key until it is the right one. */
  async meet(work) {
    try {
      await work();
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 401) throw error;
      if (await askForKey()) await this.meet(work);
      else showError("This server needs its API key; reload the page to enter it.");
    }
  }

  /** Questions that suit the documents in use; left as they are where they have not changed, since one may have focus. */
  offerExamples(questions) {
    const shown = [...byId("examples").children].map((item) => item.textContent);
    if (shown.join("\n") === questions.join("\n")) return;
    byId("examples").replaceChildren(...questions.map((text) => make("li", {},
      make("button", { type: "button", onclick: () => this.ask(text) }, text))));
  }

  startNew() {
    this.leave();
    this.open(newId());
    byId("question").focus();
  }

  /** The user chose a conversation. An answer that was left is asked for again. */
  async reopen(id) {
    if (id === this.id) return;
    this.leave();
    this.open(id);
    byId("main").scrollIntoView();
    await this.askAgain();
  }

  /** Show a conversation; one that is not kept is new. */
  open(id) {
    this.id = id;
    sessionStorage.setItem(OPEN, id);
    this.show(openConversation(id));
  }

  /** Keep the answer that runs as it is, and end it here. */
  leave() {
    this.keepRunning();
    this.drop();
  }

  drop() {
    this.abort?.abort();
    if (this.abort) this.setAnswering(null);
  }

  /** A conversation was deleted; null: all were. */
  forget(id) {
    if (id === null || id === this.id) {
      this.drop();
      this.startNew();
    } else this.history.show(this.id);
  }

  show(states) {
    this.turns = states.map((state) => this.makeTurn(state));
    for (const turn of this.turns) turn.restore();
    byId("turns").replaceChildren(...this.turns.map((turn) => turn.element));
    byId("welcome").hidden = states.length > 0;
    showError(null);
    showDetail(null);
    this.history.show(this.id);
  }

  makeTurn(state) {
    return new Turn(state, (question, seed) => {
      this.options.setSeed(seed);
      byId("question").value = question;
      fitQuestion();
      byId("question").focus();
    });
  }

  /** Ask, and show the answer as it comes. */
  async ask(question) {
    if (!question || this.abort) return;
    let options;
    try {
      options = this.options.read();
    } catch (error) {
      showError(error.message);
      return;
    }
    showError(null);
    const turn = this.makeTurn(begin(question, options, this.options.modeOf(options), this.options.isWithHistory));
    this.turns.push(turn);
    byId("welcome").hidden = true;
    byId("documents-panel").open &&= matchMedia(WIDE).matches;
    byId("turns").append(turn.element);
    byId("question").value = "";
    fitQuestion();
    turn.element.scrollIntoView({ block: "start" });
    this.keep();
    await this.follow(turn);
  }

  /** Ask again for the last answer, if the page was left while it came, or the connection to the server broke. */
  async askAgain() {
    if (this.abort) return;
    this.open(this.id);
    const turn = this.turns.at(-1);
    if (turn && isUnfinished(turn.state)) await this.follow(turn);
  }

  /** Show the last answer as it comes. */
  async follow(turn) {
    const { options } = turn.state;
    const body = queryOf(turn.state, turn.state.isWithHistory ? historyOf(this.turns.slice(0, -1)) : []);
    const abort = new AbortController();
    this.setAnswering(abort);
    announce("Answering.");
    try {
      for await (const event of ask(body, abort.signal)) {
        turn.take(event);
        if (event.type === "peer") this.link.show(missingParties(turn.state).length ? "degraded" : "connected");
        if (event.type === "token") {
          if (!options.only && !missingParties(turn.state).length) this.link.show("connected");
          keepInView(turn.strip.element);
        }
      }
      if (turn.state.done?.reason === "failed") turn.state.error = turn.state.done.error ?? "The query failed.";
      else if (!turn.state.done) throw new ApiError("The server ended this answer early.");
    } catch (error) {
      turn.state.isStopped = abort.signal.aborted;
      turn.state.isBroken = !abort.signal.aborted && !error.status;
      if (!abort.signal.aborted) turn.state.error = explain(error);
    }
    if (!this.turns.includes(turn)) return; // it is kept as it was
    turn.finish();
    this.keep();
    announce(turn.state.error ?? `Answer complete: ${textOf(turn.state)}`);
    if (this.abort === abort) this.setAnswering(null);
    await this.meet(() => this.link.settle(missingParties(turn.state).length > 0));
  }

  /** abort: of the answer that runs, null when none does. */
  setAnswering(abort) {
    this.abort = abort;
    this.link.isAnswering = abort !== null;
    const hadFocus = document.activeElement === byId("stop");
    byId("ask").hidden = abort !== null;
    byId("stop").hidden = abort === null;
    document.body.classList.toggle("answering", abort !== null);
    if (hadFocus) byId("question").focus();
  }

  keepRunning() {
    if (this.abort) this.keep();
  }

  keep() {
    if (!keepConversation(this.id, this.turns.map((turn) => turn.state))) {
      showError("This conversation cannot be saved: the browser’s storage is full or switched off.");
    }
    this.history.show(this.id);
  }
}

function newId() {
  return crypto.randomUUID?.() ?? String(Date.now());
}

/** Turns as a query takes them: those that have an answer. */
function historyOf(turns) {
  return turns.filter((turn) => textOf(turn.state)).flatMap(({ state }) => [
    { role: "user", content: state.question },
    { role: "assistant", content: textOf(state) },
  ]);
}

/** The sentence of an error, and what helps within this page. */
function explain(error) {
  if (error.code === "context_length_exceeded") {
    return `${error.message} “New conversation” begins without the earlier turns.`;
  }
  return error.status ? error.message : `${error.message} Reload the page to ask again.`;
}

/** What this server is. */
function welcome(status) {
  const isFederated = status.mode === "federated";
  byId("documents-panel").hidden = isFederated;
  if (status.is_alone) {
    byId("welcome-title").textContent = "Answers from your own files";
    byId("welcome-text").textContent = "Files, model and answers stay on this device. Ask something; a number behind a "
      + "word names the file that said it.";
  }
  if (!isFederated) return;
  byId("welcome-title").textContent = "Many models, one answer";
  byId("welcome-text").textContent = "Each worker reads its own documents, and none sees another’s. Ask something, and "
    + "see which words of the server’s draft their votes let stand.";
}

/** Say of every toy that answers here that it is one. */
function showToys(status) {
  const parties = status.parties.filter(({ name }) => !status.is_alone || name === status.home);
  const toys = [...new Set(parties.map((party) => party.toy).filter(Boolean))];
  const sentences = toys.map((toy) => {
    const names = parties.filter((party) => party.toy === toy)
      .map(({ name }) => (ROLES.includes(name) ? `the ${name}` : name));
    return `${capitalize(names.join(" and "))} ${names.length === 1 ? "runs" : "run"} ${toy}.`;
  });
  byId("toys").hidden = !toys.length;
  const limit = `${toys.length === 1 ? "It" : "They"} cannot answer from other texts.`;
  byId("toys").textContent = [...sentences, limit].join(" ");
}

/** Read out by screen readers, once. */
function announce(text) {
  byId("status").textContent = text;
}

function showError(text) {
  byId("error").hidden = text === null;
  byId("error").textContent = text ?? "";
}

function fitQuestion() {
  const field = byId("question");
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight}px`;
}

/** Wide windows have room for the panels beside the conversation; narrow ones show a new user where files go. */
function openPanels() {
  const isWide = matchMedia(WIDE).matches;
  byId("documents-panel").open = isWide || !byId("welcome").hidden;
  byId("history-panel").open = isWide;
}

/** Scroll along with an answer that grows beyond the window, unless the reader has scrolled away. */
function keepInView(element) {
  const hidden = element.getBoundingClientRect().bottom - byId("composer").getBoundingClientRect().top;
  if (hidden > 0 && hidden < NEAR_END_PX) scrollBy({ top: hidden });
}

/** Whether the user gave one. */
async function askForKey() {
  const dialog = byId("key-dialog");
  if (dialog.open) return false;
  dialog.returnValue = "";
  dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  setKey(byId("key").value);
  return dialog.returnValue === "ok";
}

setTheme();
new Page().start();
