// The device's own documents: what it has, and files that are dropped here to be indexed.

import { deleteDocument, fetchDocuments, upload } from "./api.js";
import { byId, make } from "./dom.js";
import { bytes, plural } from "./format.js";

export class DocumentsPanel {
  /** announce(text) is read out by screen readers. */
  constructor(announce) {
    this.announce = announce;
    this.uploading = Promise.resolve();
    const drop = byId("drop");
    byId("files").addEventListener("change", (event) => {
      this.take(event.target.files);
      event.target.value = "";
    });
    for (const name of ["dragenter", "dragover"]) {
      document.addEventListener(name, (event) => {
        if (!hasFiles(event)) return;
        event.preventDefault();
        drop.classList.add("over");
      });
    }
    document.addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) drop.classList.remove("over");
    });
    document.addEventListener("drop", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      drop.classList.remove("over");
      byId("documents-panel").open = true;
      this.take(event.dataTransfer.files);
    });
  }

  /** Show what the device has, or that its documents are not at this server. */
  async refresh() {
    let state;
    try {
      state = await fetchDocuments();
    } catch (error) {
      if (error.status === 401) throw error;
      byId("documents-note").textContent = error.message;
      return;
    }
    byId("drop").hidden = !state.can_add;
    byId("documents-note").textContent = state.note ?? "";
    byId("kinds").textContent = `${state.kinds.join(" ")}, up to ${bytes(state.max_bytes)} each`;
    byId("files").setAttribute("accept", state.kinds.join(","));
    byId("documents").replaceChildren(...state.documents.map((document) => this.makeItem(document)));
  }

  makeItem({ name, num_bytes: size, is_deletable: isDeletable }) {
    return make("li", {},
      make("span", { class: "title" }, name),
      make("span", { class: "small" }, size === null ? "" : bytes(size)),
      isDeletable && make("button", {
        type: "button", class: "remove", "aria-label": `Delete ${name} from this device’s index`,
        onclick: () => this.remove(name),
      }, "×"));
  }

  async remove(name) {
    try {
      await deleteDocument(name);
      for (const line of [...byId("uploads").children]) if (line.dataset.name === name) line.remove();
      this.announce(`${name} was deleted.`);
    } catch (error) {
      byId("documents-note").textContent = error.message;
      return;
    }
    await this.refresh();
  }

  /** Upload files, one after the other. How earlier uploads ended is shown until then. */
  take(files) {
    for (const line of byId("uploads").querySelectorAll(".finished, .failed")) line.remove();
    for (const file of files) {
      const line = this.makeLine(file);
      byId("uploads").append(line.element);
      this.uploading = this.uploading.then(() => this.send(file, line));
    }
  }

  makeLine(file) {
    const bar = make("progress", { "aria-label": `Indexing ${file.name}` });
    const word = make("span", { class: "small" }, "waiting");
    const element = make("li", { "data-name": file.name }, make("span", { class: "title" }, file.name), word, bar);
    return { bar, word, element };
  }

  async send(file, { bar, word, element }) {
    try {
      word.textContent = "sending";
      for await (const event of upload(file)) {
        if (event.type === "progress") {
          bar.max = event.num_total || 1;
          bar.value = event.num_done;
          word.textContent = event.num_total ? `${event.num_done} of ${plural(event.num_total, "passage")}` : "reading";
        } else if (event.type === "indexed") {
          word.textContent = event.is_unchanged ? "already indexed" : `${plural(event.num_added, "passage")} added`;
          element.classList.add("finished");
          this.announce(`${file.name} was indexed: ${word.textContent}.`);
        }
      }
    } catch (error) {
      word.textContent = error.message;
      element.classList.add("failed");
      this.announce(`${file.name}: ${error.message}`);
    }
    bar.remove();
    await this.refresh();
  }
}

function hasFiles(event) {
  return event.dataTransfer.types.includes("Files");
}
