// The link between the parties and to the server, as the top of the page shows it.

import { fetchStatus } from "./api.js";
import { byId } from "./dom.js";

const EVERY_MS = 5000;
const WORDS = {
  unknown: "connecting",
  connected: "connected",
  lost: "link lost",
  silent: "lost during the last answer",
  degraded: "link lost, answering alone",
  unreachable: "server unreachable",
};

export class LinkStatus {
  /** onStatus(status) is called whenever the server has answered. */
  constructor(onStatus) {
    this.onStatus = onStatus;
    this.isAnswering = false;
    this.isSilent = false; // a peer was missing when the last answer ended, and has not connected again since
    setInterval(() => document.visibilityState === "visible" && !this.isAnswering && this.look(), EVERY_MS);
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.look());
  }

  /** The same now and then, which never asks for a key. */
  look() {
    this.poll().catch(() => this.show("unknown"));
  }

  /** Ask the server how it is. Throws ApiError only where it wants another key. */
  async poll() {
    try {
      const status = await fetchStatus();
      const home = status.home;
      const peers = status.parties.filter((party) => party.name !== home);
      byId("link").toggleAttribute("data-alone", status.is_alone);
      byId("link-home").textContent = status.is_alone ? "this device" : home;
      byId("link-peer").textContent = peers.length === 1 ? peers[0].name : `${peers.length} workers`;
      const isConnected = peers.every((party) => party.is_connected);
      this.isSilent &&= isConnected;
      this.show(!isConnected ? "lost" : this.isSilent ? "silent" : "connected");
      this.onStatus(status);
    } catch (error) {
      if (error.status === 401) throw error;
      this.show("unreachable");
    }
  }

  /** An answer ended; isMissing: without a peer. */
  async settle(isMissing) {
    this.isSilent = isMissing;
    await this.poll();
  }

  /** state: a key of WORDS. */
  show(state) {
    byId("link").dataset.state = state;
    byId("link-word").textContent = WORDS[state];
  }
}
