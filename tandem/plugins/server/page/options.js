// The options of a question: what is left empty is the server’s default.

import { byId, make } from "./dom.js";

const STORE = "tandem.options";
const NUMBERS = ["temperature", "seed", "max_new_tokens"];
const CHECKS = ["show_drafts", "with_history"];
const MODES = {
  dual: "both together (dual)",
  speculative: "device drafts, cloud writes (speculative)",
  federated: "many workers (federated)",
  device: "device alone",
  cloud: "cloud alone",
};

export class Options {
  constructor() {
    this.form = byId("composer");
    this.serverMode = "dual";
    this.form.addEventListener("change", () => this.changed());
    byId("theme").addEventListener("change", (event) => setTheme(event.target.value));
  }

  /** Offer what this server can do. status: of the server. */
  offer(status) {
    if (this.isOffered) return;
    this.isOffered = true;
    const { mode, parties } = status;
    this.serverMode = mode;
    const names = mode === "federated" ? ["federated"] : ["dual", "speculative"];
    const alone = parties.filter((party) => party.can_answer_alone && party.name in MODES);
    if (mode !== "federated") names.push(...alone.map((party) => party.name));
    byId("mode").replaceChildren(...names.map((name) => make("option", { value: name }, MODES[name])));
    byId("mode").value = mode;
    for (const name of ["mode", "placement"]) byId(name).closest("label").hidden = status.is_alone;
    // the toys were trained on single questions
    this.form.elements.with_history.checked = !parties.find((party) => party.name === status.home)?.toy;
    this.restore();
  }

  /** As a query takes them; what is empty is left out. Throws a sentence for a value that is none. */
  read() {
    const { elements } = this.form;
    const options = { show_drafts: elements.show_drafts.checked };
    const mode = elements.mode.value || this.serverMode;
    if (mode === "device" || mode === "cloud") options.only = mode;
    else if (mode !== this.serverMode) options.mode = mode;
    if (mode === "dual" && elements.placement.value) options.placement = elements.placement.value;
    for (const name of NUMBERS) {
      if (!elements[name].validity.valid) {
        byId("options").open = true;
        elements[name].focus();
        throw new Error(`${elements[name].closest("label").textContent.trim()}: ${elements[name].validationMessage}`);
      }
      if (elements[name].value !== "") options[name] = Number(elements[name].value);
    }
    return options;
  }

  /** Whether earlier turns of the conversation go along. */
  get isWithHistory() {
    return this.form.elements.with_history.checked;
  }

  /** The mode whose words describe the answer. */
  modeOf(options) {
    return options.mode ?? (options.only ? "dual" : this.serverMode);
  }

  /** Ask the next question with this seed. */
  setSeed(seed) {
    this.form.elements.seed.value = seed;
    this.changed();
  }

  changed() {
    const { elements } = this.form;
    const values = ["mode", "placement", "theme", ...NUMBERS].map((name) => [name, elements[name].value]);
    const checks = CHECKS.map((name) => [name, elements[name].checked]);
    localStorage.setItem(STORE, JSON.stringify(Object.fromEntries([...values, ...checks])));
    this.summarize();
  }

  restore() {
    for (const [name, value] of Object.entries(readKept())) {
      const field = this.form.elements[name];
      if (CHECKS.includes(name)) field.checked = value;
      else if (field?.tagName === "INPUT" || [...field?.options ?? []].some((option) => option.value === value)) {
        field.value = value;
      }
    }
    this.summarize();
  }

  summarize() {
    const { elements } = this.form;
    const isDual = elements.mode.value === "dual";
    elements.placement.disabled = !isDual;
    const parts = [elements.mode.value === this.serverMode ? "" : MODES[elements.mode.value],
      isDual ? elements.placement.value : "",
      elements.temperature.value && `temperature ${elements.temperature.value}`,
      elements.seed.value && `seed ${elements.seed.value}`,
      elements.max_new_tokens.value && `${elements.max_new_tokens.value} tokens`];
    byId("options-summary").textContent = parts.filter(Boolean).join(", ");
  }
}

/** Light, dark, or "" for what the system prefers. */
export function setTheme(theme = readKept().theme ?? "") {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

function readKept() {
  try {
    return JSON.parse(localStorage.getItem(STORE) ?? "{}") ?? {};
  } catch {
    return {};
  }
}
