// What this page asks of the server it came from, and of no other.

const KEY = "tandem.key";

/** A request that was refused or whose answer failed. status: of HTTP; 0: the server did not answer. */
export class ApiError extends Error {
  constructor(message, status = 0, code = null) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** Keep the key that the server asks for, until this tab is closed. */
export function setKey(key) {
  sessionStorage.setItem(KEY, key);
}

/** The typed events of one question as they happen, each with its name as `type`. Throws ApiError. */
export async function* ask(body, signal) {
  const response = await request("v1/tandem/events", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  yield* readEvents(response);
}

/** Parties, link and settings of the server. */
export async function fetchStatus() {
  return (await request("v1/tandem/status")).json();
}

/** The device's own documents, and whether some can be added. */
export async function fetchDocuments() {
  return (await request("v1/tandem/documents")).json();
}

/** Send one file to be indexed; yields {type: "progress" or "indexed", ...}. Throws ApiError. */
export async function* upload(file) {
  const response = await request(`v1/tandem/documents?name=${encodeURIComponent(file.name)}`, {
    method: "POST",
    headers: { "Content-Type": "application/octet-stream" },
    body: file,
  });
  yield* readEvents(response);
}

/** Delete one of the device's uploaded documents. */
export async function deleteDocument(name) {
  await request(`v1/tandem/documents/${encodeURIComponent(name)}`, { method: "DELETE" });
}

async function request(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let response;
  try {
    response = await fetch(path, { cache: "no-store", ...options, headers });
  } catch (error) {
    throw explainBreak(error);
  }
  if (!response.ok) throw await readError(response);
  return response;
}

async function readError(response) {
  try {
    const { error } = await response.json();
    return new ApiError(error.message, response.status, error.code);
  } catch {
    return new ApiError(`The server answered with status ${response.status}; see its log.`, response.status);
  }
}

/** Server-sent events: blocks of "event: NAME" and "data: JSON" lines, with a blank line between them. */
async function* readEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    while (true) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value;
      const blocks = text.split("\n\n");
      text = blocks.pop();
      for (const block of blocks) {
        const event = readBlock(block);
        if (event?.type === "error") throw new ApiError(event.error.message, response.status, event.error.code);
        if (event) yield event;
      }
    }
  } catch (error) {
    throw error instanceof ApiError ? error : explainBreak(error);
  } finally {
    reader.cancel().catch(() => {});
  }
}

function readBlock(block) {
  const fields = { event: "message", data: "" };
  for (const line of block.split("\n")) {
    const [, name, value] = /^(event|data): ?(.*)$/.exec(line) ?? [];
    if (name) fields[name] = value;
  }
  return fields.data ? { ...JSON.parse(fields.data), type: fields.event } : null;
}

/** An abort stays what it is; whatever else breaks a connection is a server that cannot be reached. */
function explainBreak(error) {
  if (error.name === "AbortError") return error;
  return new ApiError("The server cannot be reached; see whether `tandem serve` still runs.");
}
