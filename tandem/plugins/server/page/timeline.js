// Drafts and commits over time: the device above, the cloud below, what was decided between them.

import { make, makeSvg } from "./dom.js";
import { duration } from "./format.js";
import { VERDICTS, verdictOf } from "./transcript.js";

const WIDTH = 720;
const LEFT = 64;
const RIGHT = 20;
const LANES = { device: 24, commit: 66, cloud: 108 };
const BAR = 14;
const AXIS = 134;
const MIN_BAR = 2;
const NUM_TICKS = 5;

/** The picture of an answer, and what it shows in words; null without tokens. */
export function drawTimeline(state) {
  const { tokens, mode } = state;
  if (!tokens.length) return null;
  const end = Math.max(...tokens.map((token) => token.committed_s)) * 1.02 || 1;
  const x = (seconds) => LEFT + (Math.max(0, seconds) / end) * (WIDTH - LEFT - RIGHT);
  const label = describe(state, end);
  const picture = makeSvg("svg", {
    class: "timeline", viewBox: `0 0 ${WIDTH} ${AXIS + 18}`, role: "img", "aria-label": label,
  });
  picture.append(...drawLanes(state), ...drawAxis(end, x));
  picture.append(...tokens.map((token) => drawToken(token, mode, x)));
  return picture;
}

/** The same as a table. */
export function tabulate(state) {
  const heads = ["", "token", "proposals", "device’s draft at", "cloud’s draft at", "decided at"];
  const rows = state.tokens.map((token) => make("tr", {},
    ...[token.step, token.text.trim() || "end", VERDICTS[state.mode][verdictOf(token, state.mode)],
      duration(token.device_arrived_s), duration(token.cloud_arrived_s), duration(token.committed_s)]
      .map((text) => make("td", {}, String(text)))));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Tokens as a table" },
    make("table", {},
      make("thead", {}, make("tr", {}, ...heads.map((head) =>
        head ? make("th", { scope: "col" }, head) : make("td", {})))),
      make("tbody", {}, ...rows)));
}

function describe({ tokens, numRetracted }, end) {
  const alone = tokens.filter((token) => token.is_alone).length;
  const more = alone ? `, ${alone} of them decided alone` : "";
  return `Timeline of ${tokens.length} tokens over ${duration(end / 1.02)}${more}; `
    + `${numRetracted} drafts were retracted.`;
}

/** Workers have no lane: their votes are not drafts. */
function drawLanes({ mode }) {
  const names = { device: mode === "federated" ? "server" : "device", commit: "decided", cloud: "cloud" };
  const lanes = Object.entries(LANES).filter(([lane]) => mode !== "federated" || lane !== "cloud");
  return lanes.flatMap(([lane, y]) => [
    makeSvg("text", { x: 0, y: y + 4, class: "lane-name" }, names[lane]),
    makeSvg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y, class: "lane" }),
  ]);
}

function drawAxis(end, x) {
  const step = niceStep(end / NUM_TICKS);
  const ticks = [];
  for (let at = 0; at <= end; at += step) {
    ticks.push(
      makeSvg("line", { x1: x(at), x2: x(at), y1: AXIS - 6, y2: AXIS - 2, class: "tick" }),
      makeSvg("text", { x: x(at), y: AXIS + 10, class: "tick-name" }, at === 0 ? "0" : duration(at)));
  }
  return ticks;
}

/** 1, 2 or 5 times a power of ten, at least `rough`. */
function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
}

function drawToken(token, mode, x) {
  const verdict = verdictOf(token, mode);
  const at = x(token.committed_s);
  const group = makeSvg("g", { class: `of-token ${verdict}` },
    makeSvg("title", {}, `${token.text.trim() || "end"}: ${VERDICTS[mode][verdict]}`));
  group.append(
    ...drawDraft(token, "device", token.device_accepted, 0, at, x),
    ...drawDraft(token, "cloud", token.cloud_accepted, (token.rtt_s ?? 0) / 2, at, x),
    makeSvg("circle", { cx: at, cy: LANES.commit, r: 4, class: "commit" }));
  return group;
}

/** A bar while it was decoded, and a line to where it was decided; way: seconds that the link took. */
function drawDraft(token, party, isAccepted, way, at, x) {
  const arrived = token[`${party}_arrived_s`];
  const decode = token[`${party}_decode_s`];
  if (arrived === null) return [];
  const left = x(arrived - way - (decode ?? 0));
  const right = Math.max(x(arrived - way), left + MIN_BAR);
  const y = LANES[party];
  const edge = party === "device" ? y + BAR / 2 : y - BAR / 2;
  return [
    makeSvg("path", {
      d: `M${right} ${edge}L${at} ${LANES.commit}`, class: isAccepted ? "way" : "way rejected",
    }),
    makeSvg("rect", {
      x: left, y: y - BAR / 2, width: right - left, height: BAR, rx: 2,
      class: `draft-bar ${party}${isAccepted ? "" : " rejected"}`,
    }),
  ];
}
