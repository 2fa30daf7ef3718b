// What one question amounted to so far, gathered from its events. No document, no network: plain values.

import { capitalize } from "./format.js";

/** Who proposed a token that was decided. The text is shown; the key names its style. */
export const VERDICTS = {
  dual: {
    both: "both proposed",
    device: "device proposed",
    cloud: "cloud proposed",
    neither: "neither proposed",
    alone: "alone",
  },
  speculative: {
    both: "device draft accepted",
    cloud: "written by the cloud",
    alone: "alone",
  },
  federated: {
    both: "server draft accepted",
    neither: "workers chose another",
    alone: "without a worker",
  },
};

/** The state before the first event. isWithHistory: earlier turns go along. */
export function begin(question, options, mode, isWithHistory) {
  return {
    question,
    options,
    mode,
    isWithHistory,
    seed: options.seed ?? null,
    tokens: [],
    provisional: new Map(), // text by step
    numRetracted: 0,
    sources: [],
    steps: [], // what was said before the answer
    placements: [],
    peers: [],
    ahead: null, // queries that wait before this one
    done: null,
    error: null,
    isStopped: false,
    isBroken: false, // by a server that could not be reached; the error says so until it is asked again
  };
}

/** The same state, with one event more. Returns it. */
export function add(state, event) {
  const { type, ...fields } = event;
  const take = TAKERS[type];
  if (take) take(state, fields);
  return state;
}

const TAKERS = {
  query: (state, { seed }) => { state.seed = seed; },
  sources: (state, fields) => {
    state.sources = [...state.sources.filter(({ party }) => party !== fields.party), fields];
  },
  step: (state, fields) => { state.steps.push(fields); },
  wait: (state, { num_ahead: ahead }) => { state.ahead = ahead; },
  placement: (state, fields) => { state.placements.push(fields); },
  peer: (state, fields) => { state.peers.push(fields); },
  done: (state, fields) => {
    state.done = fields;
    state.provisional.clear();
  },
  provisional: (state, { step, text }) => { state.provisional.set(step, text); },
  retract: (state, { step }) => {
    for (const key of [...state.provisional.keys()]) {
      if (key >= step) {
        state.provisional.delete(key);
        state.numRetracted += 1;
      }
    }
  },
  citation: (state, { step, citation }) => { state.tokens[step].citation = citation; },
  token: (state, fields) => {
    state.ahead = null;
    state.provisional.delete(fields.step);
    // that of the last query, unless the answer without steps stands, whose voters tell how much each one weighs
    if (state.steps.length && !Object.keys(fields.log_weights ?? {}).length) state.mode = "speculative";
    state.tokens.push(fields);
  },
};

/** Whether the answer neither ended nor was ended: a page that was left while it came asks again. */
export function isUnfinished(state) {
  return !state.done && !state.error && !state.isStopped;
}

/** The query that gives the answer. history: the turns before. */
export function queryOf({ question, options, seed }, history) {
  const query = { question, history, ...options };
  return seed === null ? query : { ...query, seed };
}

/** The answer as text. */
export function textOf(state) {
  return state.tokens.map((token) => token.text).join("").trim();
}

/** A key of VERDICTS for one token. */
export function verdictOf(token, mode) {
  if (token.is_alone) return "alone";
  if (mode === "speculative") return token.device_accepted ? "both" : "cloud";
  if (mode === "federated") return token.device_accepted ? "both" : "neither";
  if (token.device_accepted) return token.cloud_accepted ? "both" : "device";
  return token.cloud_accepted ? "cloud" : "neither";
}

/** How many tokens each verdict has, as [key, label, count], those without any left out. */
export function countVerdicts(state) {
  const counts = new Map();
  for (const token of state.tokens) {
    const verdict = verdictOf(token, state.mode);
    counts.set(verdict, (counts.get(verdict) ?? 0) + 1);
  }
  const labels = VERDICTS[state.mode];
  return Object.keys(labels)
    .filter((key) => counts.has(key))
    .map((key) => [key, labels[key], counts.get(key)]);
}

/** Tokens per second after the first one; null for fewer than two. */
export function tokensPerSecond(state) {
  const { tokens } = state;
  if (tokens.length < 2) return null;
  const duration = tokens.at(-1).committed_s - tokens[0].committed_s;
  return duration > 0 ? (tokens.length - 1) / duration : null;
}

/** The round trip that was measured last, in seconds; null where nothing crossed. */
export function roundTrip(state) {
  return state.done?.statistics.rtt_s ?? state.tokens.findLast((token) => token.rtt_s !== null)?.rtt_s ?? null;
}

/** The parties whose link is lost now, by their last PeerEvent; one that gave a reason can be reached. */
export function missingParties(state) {
  const last = new Map(state.peers.map((event) => [event.party, event.is_alone && !event.reason]));
  return [...last].filter(([, isAlone]) => isAlone).map(([party]) => party);
}

/** One sentence for each loss and return of a peer. */
export function peerSentences(state) {
  return state.peers.map(({ step, is_alone: isAlone, reason, party }) => {
    const peer = party === "cloud" ? "the cloud" : party;
    if (!isAlone) return `${capitalize(peer)} rejoined at token ${step}.`;
    if (reason && !state.tokens.length) return `${capitalize(peer)} refused the question: ${reason}`;
    const who = state.mode === "federated" ? "the others answered" : "the device answered alone";
    const why = reason ? `${peer} gave up. ${reason}` : `the link to ${peer} was lost.`;
    return step ? `From token ${step} on, ${who}: ${why}` : `${capitalize(who)}: ${why}`;
  });
}

/** What is kept of an answer: everything but the passages and what a finished answer has no more of. */
export function toKept(state) {
  const { provisional, ahead, isBroken, ...kept } = state;
  const sources = state.sources.map((each) => ({
    ...each,
    sources: each.sources.map(({ text, metadata, ...source }) => source),
  }));
  return { ...kept, error: isBroken ? null : state.error, sources };
}

/** The state of an answer that was kept; an unfinished one begins anew, with its seed. */
export function fromKept(kept) {
  const { question, options, mode, isWithHistory, seed } = kept;
  if (isUnfinished(kept)) return { ...begin(question, options, mode, isWithHistory), seed };
  return { ...kept, provisional: new Map(), ahead: null, isBroken: false };
}
