// What is known of one token, in a small box beside it.

import { byId, make } from "./dom.js";
import { duration, percent, plural } from "./format.js";
import { VERDICTS, verdictOf } from "./transcript.js";

const GAP_PX = 8;
const MIN_SHARE = 0.1; // of a document that is named
const MAX_CHARS = 280; // of its passage

/** Show what is known of `token` beside `element`; null hides it. speakers: of `whoSaid`, its word. */
export function showDetail(token, element, mode, speakers = null) {
  const box = byId("token-detail");
  document.querySelector("[aria-describedby='token-detail']")?.removeAttribute("aria-describedby");
  box.hidden = !token;
  if (!token) return;
  element.setAttribute("aria-describedby", "token-detail");
  const verdict = verdictOf(token, mode);
  box.replaceChildren(
    make("p", { class: "detail-head" },
      make("strong", {}, token.text.trim() || "end"),
      make("span", { class: `badge ${verdict}` }, VERDICTS[mode][verdict])),
    ...drawSpeakers(speakers),
    make("table", {}, ...rowsOf(token, mode)),
    make("p", { class: "small" }, footOf(token)),
  );
  placeBeside(box, element);
}

/** Who said a word: the home's documents by name, those of others by their number. */
function drawSpeakers(speakers) {
  if (!speakers) return [];
  const named = speakers.documents.filter(({ share }) => share >= MIN_SHARE)
    .toSorted((one, other) => other.share - one.share);
  const rows = named.map(({ number, title, page, share }) => [
    `${number === null ? "" : `[${number}] `}${title}${page === null ? "" : `, page ${page}`}`, share]);
  rows.push(...speakers.rest.filter(([, share]) => share >= MIN_SHARE));
  const passage = named[0]?.text?.trim().replace(/\s*\n\s*/g, "\n");
  return [
    make("p", { class: "small" }, `“${speakers.word}” was said by`),
    make("table", { class: "said" }, ...rows.map(([name, share]) => make("tr", {},
      make("th", { scope: "row" }, name), make("td", {}, percent(share))))),
    passage && make("p", { class: "passage" },
      passage.length > MAX_CHARS ? `${passage.slice(0, MAX_CHARS).trimEnd()}…` : passage),
  ].filter(Boolean);
}

/** What `others` are: parties with their documents, as far as they are known. */
export function namesOfOthers(sources) {
  const others = sources.filter(({ sources: read }) => read.every(({ score }) => score === null));
  if (!others.length) return "other parties";
  return others.map(({ party, sources: read }) => (read.length
    ? `the ${party} (${plural(read.length, "document")})` : `the ${party}`)).join(", ");
}

function rowsOf(token, mode) {
  const first = mode === "federated" ? "server" : "device";
  const sides = [[first, token.device_accepted, token.device_acceptance, token.device_decode_s,
    token.device_arrived_s]];
  if (mode === "dual") {
    sides.push(["cloud", token.cloud_accepted, token.cloud_acceptance, token.cloud_decode_s,
      token.cloud_arrived_s]);
  }
  const heads = ["draft by", "accepted", "expected", "decoded in", "arrived at"];
  return [
    make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head))),
    ...sides.map(([name, accepted, expected, decode, arrived]) => make("tr", {},
      make("th", { scope: "row" }, name),
      make("td", {}, arrived === null && decode === null ? "none" : accepted ? "✓ yes" : "✗ no"),
      ...[percent(expected), duration(decode), duration(arrived)].map((text) => make("td", {}, text)))),
  ];
}

function footOf(token) {
  const parts = [
    `token ${token.step}`,
    `decided by the ${token.aggregator} after ${duration(token.committed_s)}`,
  ];
  if (token.rtt_s !== null) parts.push(`round trip ${duration(token.rtt_s)}`);
  if (token.last_voter) parts.push(`last vote from ${token.last_voter}`);
  return parts.join(" · ");
}

/** Below the token, or above it where there is no room; never beyond the window. */
function placeBeside(box, element) {
  const token = element.getBoundingClientRect();
  const { width, height } = box.getBoundingClientRect();
  const { clientWidth } = document.documentElement;
  const left = Math.max(GAP_PX, Math.min(token.left, clientWidth - width - GAP_PX));
  const composerTop = byId("composer").getBoundingClientRect().top;
  const hasRoom = token.bottom + GAP_PX + height < composerTop;
  const top = hasRoom ? token.bottom + GAP_PX : token.top - GAP_PX - height;
  box.style.left = `${left}px`;
  box.style.top = `${Math.max(GAP_PX, top)}px`;
}
