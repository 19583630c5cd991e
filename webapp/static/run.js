// One answer while it comes: its text, its tokens and their origin, and its times. Pure.

/**
 * @typedef {{text: string, origin: "drafted"|"target"|"unknown"}} Piece
 *
 * Each verify emits the accepted drafts and one token of the target, so that rounds can be
 * counted while they happen: tokens of the target, without the first, which the prompt gives.
 */
export class Run {
  #unseen = []; // pieces of tokens whose text has not come yet: the server may hold it back

  /**
   * @param {{label: string, width: number|null, began: number}} facts  the width that is known
   *   before the end, and a clock reading in milliseconds
   */
  constructor({ label, width = null, began }) {
    this.label = label;
    this.width = width;
    this.began = began;
    this.firstAt = null;
    this.firstCount = 0;
    this.lastAt = null;
    this.endedAt = null;
    this.state = "waiting"; // then "streaming", and one of "done", "stopped", "failed"
    this.text = "";
    this.ids = [];
    this.drafted = 0;
    this.flagged = true; // whether every token came with its origin
    this.finish = "";
    this.timings = null;
    this.usage = null;
    this.seed = null;
    this.error = null;
  }

  /**
   * Take a chunk in.
   *
   * @param {object} chunk  of a chat stream
   * @param {number} now  milliseconds
   * @returns {Piece[]}  what it adds to the text
   */
  take(chunk, now) {
    if (chunk.timings && typeof chunk.timings === "object") this.timings = chunk.timings;
    if (chunk.usage && typeof chunk.usage === "object") this.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    const seed = chunk.seed ?? choice?.seed;
    if (Number.isFinite(seed)) this.seed = seed;
    if (!choice) return [];
    if (choice.finish_reason) this.finish = choice.finish_reason;
    const content = typeof choice.delta?.content === "string" ? choice.delta.content : "";
    const tokens = Array.isArray(choice.tokens) ? choice.tokens : [];
    if (content || tokens.length) this.#arrived(now, tokens, content);
    this.text += content;
    for (const token of tokens) {
      if (token.text) add(this.#unseen, token.text, token.drafted ? "drafted" : "target");
    }
    return taken(content, this.#unseen);
  }

  #arrived(now, tokens, content) {
    this.lastAt = now;
    for (const token of tokens) {
      this.ids.push(token.id);
      if (token.drafted) this.drafted += 1;
    }
    if (content && !tokens.length && !this.ids.length) this.flagged = false;
    if (this.firstAt === null) {
      this.firstAt = now;
      this.firstCount = this.ids.length;
      this.state = "streaming";
    }
  }

  /** Close the run; `state` is "done", "stopped" or "failed". */
  end(state, now, error = null) {
    this.state = state;
    this.endedAt = now;
    this.error = error;
  }

  /** Whether nothing more comes. */
  get over() {
    return this.endedAt !== null;
  }

  /** Tokens so far: as reported at the end, else as counted. */
  get count() {
    return this.timings?.predicted_n ?? this.usage?.completion_tokens ?? this.ids.length;
  }

  /** Milliseconds since the request was sent. */
  elapsed(now) {
    return (this.endedAt ?? now) - this.began;
  }
}

/**
 * Cut a text along the pieces of its tokens, which are used up. The text is right in any case;
 * where the pieces do not lead to it, as when a stop text cut one or a character was finished
 * late, the origin of the rest is unknown.
 *
 * @param {string} content
 * @param {Piece[]} pieces
 * @returns {Piece[]}  that join to the content
 */
export function taken(content, pieces) {
  const found = [];
  let at = 0;
  while (at < content.length && pieces.length) {
    const { text, origin } = pieces[0];
    const part = text.slice(0, content.length - at);
    if (!content.startsWith(part, at)) {
      pieces.length = 0;
      break;
    }
    add(found, part, origin);
    at += part.length;
    if (part.length < text.length) pieces[0] = { text: text.slice(part.length), origin };
    else pieces.shift();
  }
  if (at < content.length) add(found, content.slice(at), "unknown");
  return found;
}

function add(pieces, text, origin) {
  const last = pieces.at(-1);
  if (last?.origin === origin) last.text += text;
  else pieces.push({ text, origin });
}
