// Server-sent events out of pieces of text, whatever their borders. Pure.

/** Reads one stream; feed it decoded text. */
export class EventParser {
  #rest = "";
  #event = "";
  #data = [];
  #begun = false;

  /**
   * @param {string} text  the next piece
   * @returns {{event: string, data: string}[]}  what it completes; a comment has the event
   *   "comment", and an event without a name is called "message"
   */
  feed(text) {
    if (!this.#begun && text) {
      this.#begun = true;
      text = text.replace(/^\uFEFF/, "");
    }
    const found = [];
    const all = this.#rest + text;
    let from = 0;
    for (;;) {
      const end = nextBreak(all, from);
      if (end < 0) break;
      this.#line(all.slice(from, end), found);
      from = all.startsWith("\r\n", end) ? end + 2 : end + 1;
    }
    this.#rest = all.slice(from);
    return found;
  }

  #line(line, found) {
    if (line === "") {
      if (this.#data.length) {
        found.push({ event: this.#event || "message", data: this.#data.join("\n") });
      }
      this.#event = "";
      this.#data = [];
      return;
    }
    const colon = line.indexOf(":");
    if (colon === 0) {
      found.push({ event: "comment", data: line.slice(1).trim() });
      return;
    }
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") this.#data.push(value);
    if (name === "event") this.#event = value;
  }
}

/** Where the next line ends; a carriage return at the very end may be half of a pair. */
function nextBreak(text, from) {
  for (let at = from; at < text.length; at += 1) {
    if (text[at] === "\n") return at;
    if (text[at] === "\r") return at + 1 < text.length ? at : -1;
  }
  return -1;
}
