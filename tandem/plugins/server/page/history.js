// The list of conversations that this browser keeps.

import { deleteConversations, listConversations } from "./conversations.js";
import { byId, make } from "./dom.js";

const CONFIRM_MS = 4000;

export class HistoryPanel {
  /** onOpen(id) and onDeleted(id or null: all) are called when the user chooses so. */
  constructor(onOpen, onDeleted) {
    this.onOpen = onOpen;
    this.onDeleted = onDeleted;
    byId("delete-all").addEventListener("click", (event) => this.confirmAll(event.currentTarget));
  }

  /** Show what is kept; the one that is open is marked. */
  show(openId) {
    const conversations = listConversations();
    byId("delete-all").hidden = conversations.length === 0;
    byId("history").replaceChildren(...conversations.map(({ id, title, turns }) => make("li", {},
      make("button", {
        type: "button", class: "entry", "aria-current": id === openId ? "true" : null,
        onclick: () => this.onOpen(id),
      }, title, turns.length > 1 ? make("span", { class: "small" }, ` +${turns.length - 1}`) : null),
      make("button", {
        type: "button", class: "remove", "aria-label": `Delete the conversation “${title}”`,
        onclick: () => this.remove(id),
      }, "×"))));
  }

  remove(id) {
    deleteConversations(id);
    this.onDeleted(id);
    byId("history").querySelector(".entry")?.focus();
  }

  /** The first press asks, the second one deletes. */
  confirmAll(button) {
    if (!button.dataset.armed) {
      button.dataset.armed = "yes";
      button.textContent = "Delete all? Press again";
      setTimeout(() => this.disarm(button), CONFIRM_MS);
      return;
    }
    this.disarm(button);
    deleteConversations();
    this.onDeleted(null);
  }

  disarm(button) {
    delete button.dataset.armed;
    button.textContent = "Delete all";
  }
}
