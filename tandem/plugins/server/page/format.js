// Numbers for people. What was not measured arrives as null and is shown as a dash.

const DASH = "–";
const SPACE = "\u00a0"; // between a number and its unit, which stay on one line

function isKnown(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/** One decimal below ten, none above. */
function brief(number) {
  return number.toFixed(number < 9.95 ? 1 : 0);
}

/** Seconds as "3.1 ms", "240 ms" or "2.41 s". */
export function duration(seconds) {
  if (!isKnown(seconds)) return DASH;
  const ms = seconds * 1000;
  if (ms < 10) return `${ms.toFixed(1)}${SPACE}ms`;
  return ms < 1000 ? `${Math.round(ms)}${SPACE}ms` : `${seconds.toFixed(2)}${SPACE}s`;
}

/** Bytes as "310 B", "4.1 kB" or "32 MB". */
export function bytes(count) {
  if (!isKnown(count)) return DASH;
  if (count < 1000) return `${Math.round(count)}${SPACE}B`;
  return count < 1e6 ? `${brief(count / 1000)}${SPACE}kB` : `${brief(count / 1e6)}${SPACE}MB`;
}

/** A share from 0 to 1 as "71 %". */
export function percent(share) {
  return isKnown(share) ? `${Math.round(100 * share)}${SPACE}%` : DASH;
}

/** "1 token", "2 tokens". */
export function plural(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}

/** Tokens per second as "24.3 tokens/s". */
export function rate(perSecond) {
  return `${perSecond.toFixed(1)}${SPACE}tokens/s`;
}

/** A sentence's beginning. */
export function capitalize(text) {
  return text[0].toUpperCase() + text.slice(1);
}
