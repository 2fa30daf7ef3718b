// One question and its answer as they are shown: tokens, how it went, sources, link, timeline.

import { make, makeSvg } from "./dom.js";
import { clearDocument, findSpans, findWords, ownSources, supportedSpans } from "./citations.js";
import { namesOfOthers, showDetail } from "./detail.js";
import { bytes, duration, plural, rate } from "./format.js";
import { drawTimeline, tabulate } from "./timeline.js";
import { TokenStrip } from "./tokens.js";
import {
  add, countVerdicts, isUnfinished, peerSentences, roundTrip, textOf, tokensPerSecond,
} from "./transcript.js";

const ENDS = {
  length: "stopped at the token limit",
  stop: "ended at a stop text",
  loop: "stopped, since it repeats itself",
  cancelled: "stopped",
};

const MAX_MARKS = 32;
const LONG_QUESTION = 300; // characters; from here on it may need to be scrolled, which a keyboard does where it has focus

let numTurns = 0;

export class Turn {
  /** onAgain(question, seed) is called for "Ask again". */
  constructor(state, onAgain) {
    this.state = state;
    this.onAgain = onAgain;
    numTurns += 1;
    const id = `question-${numTurns}`;
    this.words = []; // of the answer so far, with what is known of who said them
    this.numbers = new Map(); // of the documents that are cited
    this.strip = new TokenStrip(state.mode, (token, element) => showDetail(token, element, state.mode,
      token && this.whoSaid(token.step)));
    this.spoken = make("p", { class: "visually-hidden" });
    this.steps = make("div");
    this.notices = make("div", { class: "notices" });
    this.legend = make("div");
    this.sources = make("div", { class: "facts" });
    this.summary = make("span", {}, "waiting for documents");
    this.body = make("div", { class: "evidence-body" });
    this.actions = make("div");
    const evidence = make("details", { class: "evidence" }, make("summary", {}, this.summary), this.body);
    this.element = make("article", { class: "turn", "aria-labelledby": id },
      make("h2", { id, class: "question", tabindex: state.question.length > LONG_QUESTION && "0" }, state.question),
      this.spoken, this.steps, this.strip.element, this.notices, this.legend, this.sources, evidence, this.actions);
    this.isDrawn = false;
  }

  /** Show one event more. */
  take(event) {
    add(this.state, event);
    this.strip.mode = this.state.mode;
    if (event.type === "sources") this.drawSources();
    if (event.type === "step") this.drawSteps();
    if (event.type === "provisional") this.strip.addDraft(event.step, event.text);
    else if (event.type === "retract") this.strip.retract(event.step);
    else if (event.type === "token") this.strip.add(event);
    else if (event.type === "done") this.strip.retract(0);
    this.drawSoon();
  }

  /** Show an answer that was kept. */
  restore() {
    for (const token of this.state.tokens) this.strip.add(token);
    this.drawSteps();
    this.drawSources();
    this.finish();
  }

  /** Nothing more will come. */
  finish() {
    this.strip.retract(0);
    this.state.provisional.clear();
    this.spoken.textContent = textOf(this.state);
    this.draw();
  }

  /** Who said the word that a token is part of; null where that is not known. */
  whoSaid(step) {
    const word = this.words.find(({ steps, documents }) => documents && steps.includes(step));
    if (!word) return null;
    const own = ownSources(this.state);
    const documents = word.documents.map((share, place) => ({
      title: "a document", page: null, ...own[place], share, number: this.numbers.get(place) ?? null }));
    const nobody = Math.max(0, 1 - word.others - word.documents.reduce((sum, share) => sum + share, 0));
    const rest = [[namesOfOthers(this.state.sources), word.others], ["no document", nobody]];
    return { word: textOfWord(this.state.tokens, word), documents, rest };
  }

  /** Number the documents in the order in which they are cited, and mark their words. */
  drawCitations() {
    const { tokens } = this.state;
    this.words = findWords(tokens);
    const all = findSpans(tokens, this.words);
    const spans = supportedSpans(all, this.state.done?.support);
    const refuted = new Set(all.filter((span) => !spans.includes(span)).flatMap(({ words }) => words));
    const own = ownSources(this.state);
    const size = this.numbers.size;
    this.numbers = new Map([...new Set(spans.map(({ document }) => document))].map((place, at) => [place, at + 1]));
    const marks = spans.map(({ document, words }) => [lastShown(tokens, words.at(-1)), this.numbers.get(document)]);
    const names = this.words.flatMap((word) => {
      const document = refuted.has(word) ? null : clearDocument(word);
      return document === null ? [] : word.steps.map((step) => [step, own[document]?.title ?? "a document"]);
    });
    this.strip.cite(new Map(marks), new Map(names));
    if (size !== this.numbers.size) this.drawSources();
  }

  drawSoon() {
    if (this.isDrawn) return;
    this.isDrawn = true;
    requestAnimationFrame(() => {
      this.isDrawn = false;
      this.draw();
    });
  }

  draw() {
    this.drawCitations();
    this.summary.textContent = summarize(this.state);
    this.notices.replaceChildren(...drawNotices(this.state));
    const counts = countVerdicts(this.state);
    const isAlone = counts.length === 1 && counts[0][0] === "alone"; // who proposed a word says nothing then
    this.strip.element.classList.toggle("plain", isAlone);
    this.legend.replaceChildren(...counts.length && !isAlone ? [drawLegend(counts)] : []);
    const isTableOpen = this.body.querySelector(".as-table")?.open;
    this.body.replaceChildren(...[
      isAlone ? null : drawShares(this.state, counts), drawLink(this.state), drawTime(this.state, isTableOpen),
    ].filter(Boolean));
    this.actions.replaceChildren(...[this.drawActions()].filter(Boolean));
  }

  /** What the parties said before the answer, folded above it. */
  drawSteps() {
    const said = (this.state.steps ?? []).map(({ party, text }) => make("p", { class: `of-${party}` }, `${party}: ${text}`));
    this.steps.replaceChildren(...said.length ? [make("details", { class: "evidence" },
      make("summary", {}, `said first, in ${plural(said.length, "step")}`), ...said)] : []);
  }

  /** Apart from the rest, which is drawn again with each token: a passage that is open stays open. */
  drawSources() {
    const isSecond = ({ party }) => Number(party === "cloud"); // whichever came first
    const sources = this.state.sources.toSorted((one, other) => isSecond(one) - isSecond(other));
    const own = ownSources(this.state);
    const number = (source) => this.numbers.get(own.indexOf(source)) ?? null;
    const opened = [...this.sources.querySelectorAll(".source[open]")].map(({ dataset }) => dataset.id);
    this.sources.replaceChildren(...sources.map((each) => drawSources(each, number)));
    for (const source of this.sources.querySelectorAll(".source")) {
      if (opened.includes(source.dataset.id)) source.open = true;
    }
  }

  drawActions() {
    const { state } = this;
    if (isUnfinished(state)) return null;
    const copy = make("button", { type: "button", class: "quiet" }, "Copy answer");
    copy.addEventListener("click", async () => {
      await navigator.clipboard.writeText(textOf(state));
      copy.textContent = "Copied";
    });
    const again = make("button", {
      type: "button", class: "quiet", onclick: () => this.onAgain(state.question, state.seed),
    }, "Ask again with the same seed");
    return make("p", { class: "actions" }, textOf(state) && navigator.clipboard && copy,
      state.seed !== null && again);
  }
}

/** One line, which stays when the rest is folded away. */
function summarize(state) {
  const { tokens } = state;
  if (!tokens.length) {
    if (state.error || state.isStopped || state.done) return "no answer";
    if (state.ahead !== null) return `waiting, ${plural(state.ahead, "question")} ahead`;
    return state.sources.length ? "drafting" : "reading the documents";
  }
  const perSecond = tokensPerSecond(state);
  const parts = [plural(tokens.length, "token"), perSecond && rate(perSecond),
    `first after ${duration(tokens[0].committed_s)}`];
  const end = ENDS[state.done?.reason];
  return [...parts, end].filter(Boolean).join(" · ");
}

function drawNotices(state) {
  const lost = peerSentences(state).map((text, number) => make("p", {
    class: state.peers[number].is_alone ? `notice ${state.tokens.length ? "lost" : "error"}` : "notice",
  }, text));
  const notes = state.sources.flatMap(({ party, notes: texts }) => texts.map((text) =>
    make("p", { class: "notice" }, `${party}: ${text}`)));
  const unsupported = state.done?.support?.is_supported === false
    ? [make("p", { class: "notice" }, "None of your documents says this.")] : [];
  const isSaid = lost.some((notice) => notice.textContent.endsWith(state.error));
  const error = state.error && !isSaid ? [make("p", { class: "notice error" }, state.error)] : [];
  const stopped = state.isStopped ? [make("p", { class: "notice" }, "You stopped this answer.")] : [];
  return [...lost, ...notes, ...unsupported, ...stopped, ...error];
}

/** What the colours mean. */
function drawLegend(counts) {
  return make("ul", { class: "legend" }, ...counts.map(([key, label, count]) => make("li", {},
    make("span", { class: `swatch ${key}`, "aria-hidden": "true" }, "ab"),
    `${label} `, make("span", { class: "count" }, String(count)))));
}

/** A bar of who proposed the tokens. */
function drawShares(state, counts) {
  if (!counts.length) return null;
  const all = state.tokens.length;
  const bar = makeSvg("svg", { class: "bar", viewBox: "0 0 100 4", preserveAspectRatio: "none", role: "img",
    "aria-label": counts.map(([, label, count]) => `${label} ${count} of ${all}`).join(", ") });
  let at = 0;
  for (const [key, , count] of counts) {
    const width = (100 * count) / all;
    bar.append(makeSvg("rect", { x: at, y: 0, width, height: 4, class: key }));
    at += width;
  }
  return bar;
}

/** The last step of a word whose token is to be seen. */
function lastShown(tokens, word) {
  return word.steps.findLast((step) => tokens[step].text.trim());
}

/** A word as it stands in the answer. */
function textOfWord(tokens, { start, end }) {
  return tokens.map(({ text }) => text).join("").slice(start, end);
}

function drawSources({ party, sources }, number) {
  const own = sources.filter((source) => source.title !== null);
  const opaque = sources.filter((source) => source.title === null);
  const items = own.map((source) => make("li", {}, drawSource(source, number(source))));
  const marks = opaque.length && make("p", { class: "marks" },
    make("span", { "aria-hidden": "true" }, "■ ".repeat(Math.min(opaque.length, MAX_MARKS)).trim()),
    make("span", { class: "small" }, opaque.length === 1 ? "1 document that stays there" : `${opaque.length} documents that stay there`));
  return make("section", { class: `sources of-${party}` }, make("h3", {}, `Read by the ${party}`),
    items.length ? make("ul", {}, ...items) : null, marks || null,
    sources.length ? null : make("p", { class: "small" }, "nothing"));
}

/** A document, which opens to the passage that was read. number: by which it is cited. */
function drawSource({ id, title, page, score, text }, number) {
  const parts = [make("span", { class: "title" }, title, page === null ? "" : `, page ${page}`),
    number === null ? null : make("span", { class: "number" }, make("span", { class: "visually-hidden" }, "cited as "),
      String(number)),
    score === null ? null : make("span", { class: "score" }, score.toFixed(2))];
  return text ? make("details", { class: "source", "data-id": id }, make("summary", {}, ...parts), make("p", { class: "passage" }, text))
    : make("p", { class: "source" }, ...parts);
}

function drawLink(state) {
  const statistics = state.done?.statistics;
  if (!state.tokens.length || state.options.only || statistics?.sent_bytes === 0) return null;
  const rows = [["Round trip", duration(roundTrip(state))]];
  if (statistics) {
    rows.push(["Sent", bytes(statistics.sent_bytes)], ["Received", bytes(statistics.received_bytes)]);
    const each = (statistics.sent_bytes + statistics.received_bytes) / (statistics.num_tokens || 1);
    rows.push(["Per token", bytes(each)]);
  }
  if (state.numRetracted) rows.push(["Retracted", plural(state.numRetracted, "draft")]);
  if (state.placements.length) rows.push(["Handovers", String(state.placements.length)]);
  return make("section", { class: "link-facts" }, make("h3", {}, "Over the link"),
    make("dl", {}, ...rows.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])));
}

function drawTime(state, isTableOpen) {
  const picture = drawTimeline(state);
  if (!picture) return null;
  const table = make("details", { class: "as-table", open: isTableOpen }, make("summary", {}, "As a table"));
  if (state.done || state.isStopped) table.append(tabulate(state));
  return make("section", { class: "time" }, make("h3", {}, "Drafts and decisions"),
    make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Timeline" }, picture), table);
}
