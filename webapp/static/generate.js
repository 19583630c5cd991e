// Runs one request and shows it in a column while it comes.

import { streamChat } from "./api.js";
import { errorText } from "./words.js";

const QUIET = 5000; // milliseconds without a token before the page says so
const CLOCK = 100;

/**
 * @param {{column: import("./column.js").Column, run: import("./run.js").Run, body: object,
 *   signal: AbortSignal, announcer: import("./announcer.js").Announcer|null,
 *   step: () => ({ms: number, source: string}|null)}} facts  an
 *   announcer, where there is one, reads the text to screen readers
 * @returns {Promise<void>}  when the run is over, however it ended
 */
export async function generate({ column, run, body, signal, announcer, step }) {
  const now = () => performance.now();
  let heard = now();
  const show = () => column.refresh(run, step(), now());
  const on = {
    alive: () => {
      heard = now();
    },
    chunk: (chunk) => {
      const pieces = run.take(chunk, now());
      column.add(pieces);
      for (const { text } of pieces) announcer?.add(text);
      show();
    },
  };
  const ticking = setInterval(() => {
    column.tick(run, now());
    column.say(quietText(run, heard, now()));
    announcer?.tick();
  }, CLOCK);
  show();
  try {
    await streamChat(body, signal, on);
    run.end("done", now());
  } catch (error) {
    if (signal.aborted) run.end("stopped", now());
    else run.end("failed", now(), error);
  } finally {
    clearInterval(ticking);
  }
  show();
  column.say(run.error ? errorText(run.error) : "", run.error !== null);
}

/** What to say about a stream that has gone quiet; "" while it has not. Pure. */
export function quietText(run, heard, now) {
  const last = run.lastAt ?? run.began;
  const silent = now - last;
  if (silent < QUIET) return "";
  const heardSince = heard > last + CLOCK;
  const alive = heardSince ? ` The server was heard ${seconds(now - heard)} ago.` : "";
  return `No token for ${seconds(silent)}.${alive} Stop ends the wait.`;
}

function seconds(ms) {
  return `${Math.floor(ms / 1000)} s`;
}
