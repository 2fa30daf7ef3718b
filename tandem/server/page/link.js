// The link between the parties and to the server, as the top of the page shows it.

import { fetchStatus } from "./api.js";
import { byId } from "./dom.js";

const EVERY_MS = 5000;
const WORDS = {
  connected: "connected",
  lost: "link lost",
  degraded: "answering alone",
  unreachable: "server unreachable",
};

export class LinkStatus {
  /** onStatus(status) is called whenever the server has answered. */
  constructor(onStatus) {
    this.onStatus = onStatus;
    this.isAnswering = false;
    setInterval(() => document.visibilityState === "visible" && !this.isAnswering && this.poll(), EVERY_MS);
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.poll());
  }

  /** Ask the server how it is. Throws ApiError only where it wants another key. */
  async poll() {
    try {
      const status = await fetchStatus();
      const home = status.home;
      const peers = status.parties.filter((party) => party.name !== home);
      byId("link-home").textContent = home;
      byId("link-peer").textContent = peers.length === 1 ? peers[0].name : `${peers.length} workers`;
      this.show(peers.every((party) => party.is_connected) ? "connected" : "lost");
      this.onStatus(status);
    } catch (error) {
      if (error.status === 401) throw error;
      this.show("unreachable");
    }
  }

  /** state: a key of WORDS. */
  show(state) {
    byId("link").dataset.state = state;
    byId("link-word").textContent = WORDS[state];
  }
}
