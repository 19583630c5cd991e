// Reads an answer out to screen readers without flooding them: whole sentences, and at most
// one announcement in two seconds. Statuses come at once and in full.

const PAUSE = 2000;
const PATIENCE = 6000; // a sentence that takes longer is read as far as it goes

/** Where the last whole sentence of a text ends, 0 where none does. */
export function sentenceEnd(text) {
  const ends = [...text.matchAll(/[.!?…:;]["'”’)\]]*(?=\s)|[。！？]|\n/gu)];
  const last = ends.at(-1);
  return last ? last.index + last[0].length : 0;
}

/** Where the last whole word of a text ends, 0 where none does. */
export function wordEnd(text) {
  return Math.max(text.lastIndexOf(" "), text.lastIndexOf("\n"), 0);
}

export class Announcer {
  #say;
  #clock;
  #pending = "";
  #said = -Infinity;
  #since = 0;

  /**
   * @param {(text: string) => void} say  puts a text into the live region
   * @param {() => number} clock  milliseconds
   */
  constructor(say, clock) {
    this.#say = say;
    this.#clock = clock;
  }

  /** More of the answer; nothing is said before the next `tick`. */
  add(text) {
    if (!this.#pending) this.#since = this.#clock();
    this.#pending += text;
  }

  /** Say what is due; call it a few times a second while an answer comes. */
  tick() {
    const now = this.#clock();
    if (!this.#pending || now - this.#said < PAUSE) return;
    let end = sentenceEnd(this.#pending);
    if (!end && now - this.#since >= PATIENCE) end = wordEnd(this.#pending);
    if (end) this.#speak(this.#pending.slice(0, end), this.#pending.slice(end));
  }

  /** Say what is left of the answer, then a status. */
  finish(status) {
    this.#speak([this.#pending.trim(), status].filter(Boolean).join("\n"), "");
  }

  /** Say a status; what is left of the answer before it is dropped. */
  status(text) {
    this.#speak(text, "");
  }

  #speak(text, rest) {
    this.#pending = rest;
    this.#since = this.#said = this.#clock();
    if (text.trim()) this.#say(text.trim());
  }
}
