// Compares a classic and a speculative run of one prompt with one seed. Pure.

import { classicStep, counted, digits, duration, figuresOf } from "./figures.js";

/** First place where two sequences differ, -1 where they are equal. */
export function firstDifference(one, other) {
  const shorter = Math.min(one.length, other.length);
  for (let at = 0; at < shorter; at += 1) {
    if (one[at] !== other[at]) return at;
  }
  return one.length === other.length ? -1 : shorter;
}

/** Milliseconds of writing: by the server, else by the page from the first token on. */
export function writingTime(run) {
  const ms = run.timings?.predicted_ms;
  if (Number.isFinite(ms) && ms > 0) return ms;
  return run.firstAt === null ? null : run.endedAt - run.firstAt;
}

/**
 * @param {import("./run.js").Run} classic  both have ended
 * @param {import("./run.js").Run} speculative
 * @returns {{equal: boolean|null, texts: string, times: string, ratio: number|null}}
 *   `ratio` is how many times as fast speculation was; null where there is nothing to compare
 */
export function compare(classic, speculative) {
  if (classic?.state !== "done" || speculative?.state !== "done") {
    return { equal: null, texts: "The race has no result: not both runs ended.", times: "", ratio: null };
  }
  const texts = textsOf(classic, speculative);
  return { ...texts, ...timesOf(classic, speculative) };
}

function textsOf(classic, speculative) {
  const text = firstDifference(classic.text, speculative.text);
  const ids = classic.ids.length && speculative.ids.length;
  const token = ids ? firstDifference(classic.ids, speculative.ids) : -1;
  if (text < 0 && token < 0) {
    const what = ids ? `, all ${counted(classic.ids.length, "token")}` : "";
    return { equal: true, texts: `The texts are equal${what}.` };
  }
  const where = token >= 0 ? `token ${token + 1}` : `character ${text + 1}`;
  const what = text < 0 ? "The texts are equal, their tokens are not" : "The texts differ";
  return { equal: false, texts: `${what}, from ${where} on.` };
}

function timesOf(classic, speculative) {
  const [slow, fast] = [writingTime(classic), writingTime(speculative)];
  const total = `In all: classic ${duration(classic.elapsed())}, speculative ${duration(
    speculative.elapsed(),
  )}, with reading the prompt and the way here.`;
  if (!(slow > 0 && fast > 0) || Math.min(classic.count, speculative.count) < 2) {
    return { times: `Too short to compare. ${total}`, ratio: null };
  }
  const ratio = slow / fast;
  const long = `Classic wrote for ${duration(slow)}, speculative for ${duration(fast)}`;
  return { times: `${long}: ${ratioText(ratio)}. ${costOf(classic, speculative)}${total}`, ratio };
}

function ratioText(ratio) {
  if (ratio >= 1.005) return `speculation was ${digits(ratio)} times as fast`;
  if (ratio <= 0.995) return `speculation took ${digits(1 / ratio)} times as long`;
  return "both took the same time";
}

function costOf(classic, speculative) {
  const step = classicStep(classic);
  const { emitted, roundMs, proposed } = figuresOf(speculative);
  if (!proposed) return "The speculative run drafted nothing. ";
  if (!step || !roundMs) return "";
  return `A round cost ${digits(roundMs / step)} classic steps and emitted ${digits(emitted)} tokens. `;
}
