// The answer as tokens: each coloured by who proposed it, drafts dimmed behind them, one tab stop for all.

import { make } from "./dom.js";
import { VERDICTS, verdictOf } from "./transcript.js";

const FADE_MS = 450;

export class TokenStrip {
  /** onInspect(token or null, element) is called as the pointer or the focus moves. */
  constructor(mode, onInspect) {
    this.mode = mode;
    this.onInspect = onInspect;
    this.current = null; // the tab stop
    this.tokens = new Map(); // by their elements
    this.drafts = new Map(); // pieces by step
    this.element = make("div", {
      class: "tokens",
      role: "listbox",
      "aria-label": "Tokens of the answer; arrow keys move between them",
      "aria-orientation": "horizontal",
      onkeydown: (event) => this.onKey(event),
      onpointerover: (event) => this.inspect(event.target),
      onpointerleave: () => this.onInspect(null),
      onfocusin: (event) => this.focus(event.target),
      onfocusout: () => this.onInspect(null),
    });
    this.element.hidden = true;
  }

  /** Show a draft that is not decided yet. */
  addDraft(step, text) {
    const piece = makePiece(step, text, make("span", { class: "draft", "aria-hidden": "true" }));
    this.place(piece, this.drafts.get(step));
    this.drafts.set(step, piece);
  }

  /** Withdraw all drafts from this step on. */
  retract(step) {
    for (const [at, piece] of [...this.drafts]) {
      if (at < step) continue;
      this.drafts.delete(at);
      piece.classList.add("retracted");
      setTimeout(() => piece.remove(), FADE_MS);
    }
  }

  /** Show a decided token, in the place of its draft. */
  add(token) {
    const verdict = verdictOf(token, this.mode);
    const element = make("span", {
      class: `token ${verdict}`,
      role: "option",
      "aria-selected": "false",
      "aria-label": labelOf(token, this.mode),
      tabindex: this.current ? -1 : 0,
    });
    this.place(makePiece(token.step, token.text, element), this.drafts.get(token.step));
    this.drafts.delete(token.step);
    if (!element.parentNode) return; // without text, such as the end
    this.tokens.set(element, token);
    this.current ??= element;
  }

  /** Mark what documents clearly said. marks: the number behind a token, names: who said it, both by step. */
  cite(marks, names) {
    for (const [element, token] of this.tokens) {
      const mark = marks.get(token.step);
      if (mark === undefined) delete element.dataset.cite;
      else element.dataset.cite = mark;
      element.setAttribute("aria-label", labelOf(token, this.mode, names.get(token.step)));
    }
  }

  place(piece, draft) {
    if (draft) draft.replaceWith(piece);
    else this.element.insertBefore(piece, this.element.querySelector(".retracted"));
    this.element.hidden = false;
  }

  inspect(target) {
    const element = target.closest?.(".token");
    if (element) this.onInspect(this.tokens.get(element), element);
  }

  focus(target) {
    if (!this.tokens.has(target)) return;
    this.current?.setAttribute("tabindex", "-1");
    this.current?.setAttribute("aria-selected", "false");
    this.current = target;
    target.setAttribute("tabindex", "0");
    target.setAttribute("aria-selected", "true");
    this.inspect(target);
  }

  onKey(event) {
    const elements = [...this.tokens.keys()];
    const at = elements.indexOf(this.current);
    const next = {
      ArrowRight: at + 1,
      ArrowDown: at + 1,
      ArrowLeft: at - 1,
      ArrowUp: at - 1,
      Home: 0,
      End: elements.length - 1,
    }[event.key];
    if (event.key === "Escape") this.onInspect(null);
    if (next === undefined) return;
    event.preventDefault();
    elements[Math.max(0, Math.min(next, elements.length - 1))]?.focus();
  }
}

/** What a token is for who cannot see it. name: of the document that said it. */
function labelOf(token, mode, name) {
  const speaker = name === undefined ? "" : `, said by ${name}`;
  return `${token.text.trim()}: ${VERDICTS[mode][verdictOf(token, mode)]}${speaker}`;
}

/** An element with a token's text; spaces stay outside, so that underlines end with their words. */
function makePiece(step, text, element) {
  const [, before, word] = /^(\s*)(.*)$/s.exec(step === 0 ? text.trimStart() : text);
  element.textContent = word;
  return make("span", { class: "piece", role: "presentation" }, before, word && element);
}
