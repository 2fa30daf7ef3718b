// Conversations in this browser: kept in its local storage and nowhere else.

import { fromKept, toKept } from "./transcript.js";

const STORE = "tandem.conversations";
const MAX_KEPT = 50;

/** All that are kept, newest first: {id, title, turns}, turns as `fromKept` takes them. */
export function listConversations() {
  try {
    const kept = JSON.parse(localStorage.getItem(STORE) ?? "[]");
    return Array.isArray(kept) ? kept : [];
  } catch {
    return [];
  }
}

/** Keep a conversation with these turns' states; false where the browser has no room or allows none. */
export function keepConversation(id, states) {
  const turns = states.map(toKept);
  const others = listConversations().filter((kept) => kept.id !== id);
  let all = [{ id, title: states[0].question, turns }, ...others].slice(0, MAX_KEPT);
  while (all.length) {
    try {
      localStorage.setItem(STORE, JSON.stringify(all));
      return true;
    } catch {
      all = all.slice(0, -1); // the oldest makes room
    }
  }
  return false;
}

/** The turns of one that is kept; none where it is gone. */
export function openConversation(id) {
  return (listConversations().find((kept) => kept.id === id)?.turns ?? []).map(fromKept);
}

/** Delete one, or all of them. */
export function deleteConversations(id = null) {
  const left = id === null ? [] : listConversations().filter((kept) => kept.id !== id);
  if (left.length) localStorage.setItem(STORE, JSON.stringify(left));
  else localStorage.removeItem(STORE);
}
