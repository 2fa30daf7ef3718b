// Which document said what: the words and spans of `tandem/citations.py`, of tokens that hold their shares.

const CLEAR = 0.5;
const SINGLE = "\\u3040-\\u30ff\\u3400-\\u4dbf\\u4e00-\\u9fff\\uf900-\\ufaff\\u{20000}-\\u{3ffff}";
const LETTER = `[[\\p{L}\\p{N}_]--[${SINGLE}]]`;
const WORD = new RegExp(`[${SINGLE}]|${LETTER}(?:[^\\s${SINGLE}]*${LETTER})?`, "gv");
const SENTENCE_END = /[.!?\u2026]["'\u2019\u201d\u00bb)\]]*\s+|[\u3002\uff01\uff1f]|\n+/gu;

/** The words of the tokens: {steps, start, end, documents, others}, shares null where they are not known. */
export function findWords(tokens) {
  const text = tokens.map((token) => token.text).join("");
  const ends = [];
  for (const token of tokens) ends.push((ends.at(-1) ?? 0) + token.text.length);
  let first = 0;
  return [...text.matchAll(WORD)].map(({ 0: word, index: start }) => {
    const end = start + word.length;
    while (ends[first] <= start) first += 1;
    const steps = [];
    for (let step = first; step < tokens.length; step += 1) {
      if (tokens[step].text) steps.push(step);
      if (ends[step] >= end) break;
    }
    return { steps, start, end, ...mean(steps.map((step) => tokens[step].citation).filter(Boolean)) };
  });
}

/** What is cited: {document, words} from the first to the last word in a sentence that a document clearly said. */
export function findSpans(tokens, words = findWords(tokens)) {
  const text = tokens.map((token) => token.text).join("");
  const borders = [...text.matchAll(SENTENCE_END)].map((match) => match.index + match[0].length);
  const sentence = (position) => borders.filter((border) => border <= position).length;
  const spans = [];
  let pending = [];
  for (const word of words) {
    if (!word.documents) continue;
    const document = clearDocument(word);
    const last = spans.at(-1);
    if (document === null) pending.push(word);
    else {
      const goesOn = last?.document === document && sentence(last.words.at(-1).end) === sentence(word.start);
      if (goesOn) last.words.push(...pending, word);
      else spans.push({ document, words: [word] });
      pending = [];
    }
  }
  return spans;
}

/** Those that keep their marks. support: of the answer, as `tandem/support.py` has it; undefined before its end. */
export function supportedSpans(spans, support) {
  if (support?.is_supported === false) return [];
  return spans.filter(({ words }) => support?.tokens?.[words[0].steps[0]] !== false);
}

/** The place of the document with more than half of a word; null: there is none. */
export function clearDocument({ documents }) {
  const place = documents?.findIndex((share) => share > CLEAR) ?? -1;
  return place < 0 ? null : place;
}

/** The documents that shares are of: the home's, of which alone scores are known. */
export function ownSources(state) {
  return state.sources.flatMap(({ sources }) => sources.filter(({ score }) => score !== null));
}

function mean(citations) {
  if (!citations.length) return { documents: null, others: null };
  const size = Math.max(...citations.map(({ documents }) => documents.length));
  const documents = Array.from({ length: size }, (_, place) => average(citations, (one) => one.documents[place] ?? 0));
  return { documents, others: average(citations, (one) => one.others) };
}

function average(values, read) {
  return values.reduce((sum, value) => sum + read(value), 0) / values.length;
}
