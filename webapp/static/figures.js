// What speculation did, in figures and in the words for them. Pure.

/** A number with a few digits, "–" where there is none. */
export function digits(value, places = 2) {
  return Number.isFinite(value) ? value.toFixed(places) : "–";
}

/** Milliseconds as "0.46 s", or "46 ms" below a tenth of a second. */
export function duration(ms) {
  if (!Number.isFinite(ms)) return "–";
  return ms < 100 ? `${digits(ms, 1)} ms` : `${digits(ms / 1000)} s`;
}

/** "1 token", "2 tokens". */
export function counted(count, word) {
  return `${count} ${word}${count === 1 ? "" : "s"}`;
}

/**
 * Figures of a run; null where nothing leads to one.
 *
 * @param {import("./run.js").Run} run
 * @returns {{live: boolean, rounds: number, accepted: number, proposed: number|null,
 *   acceptance: number|null, emitted: number|null, speed: number|null, roundMs: number|null}}
 *   `roundMs` is the mean time of a round in milliseconds; `live` tells estimates of the page
 *   from what the server measured
 */
export function figuresOf(run) {
  return run.timings ? reported(run.timings) : estimated(run);
}

function reported(timings) {
  const rounds = timings.draft_rounds ?? 0;
  const proposed = timings.draft_n ?? 0;
  const accepted = timings.draft_n_accepted ?? 0;
  const after = Math.max((timings.predicted_n ?? 0) - 1, 0); // the first comes from the prompt
  return withRatios({
    live: false,
    rounds: proposed ? rounds : 0,
    accepted,
    proposed,
    after,
    speed: after ? timings.predicted_per_second : null,
  });
}

function estimated(run) {
  const after = Math.max(run.ids.length - 1, 0);
  const rounds = run.drafted ? Math.max(after - run.drafted, 0) : 0;
  const since = run.lastAt - run.firstAt;
  const timed = run.ids.length - run.firstCount;
  return withRatios({
    live: true,
    rounds,
    accepted: run.drafted,
    proposed: run.width > 1 && rounds ? rounds * (run.width - 1) : null,
    after,
    speed: timed > 0 && since > 0 ? (timed * 1000) / since : null,
  });
}

function withRatios({ live, rounds, accepted, proposed, after, speed }) {
  const emitted = rounds ? after / rounds : null;
  const found = Number.isFinite(speed) && speed > 0 ? speed : null;
  return {
    live,
    rounds,
    accepted,
    proposed,
    acceptance: proposed ? Math.min(accepted / proposed, 1) : null,
    emitted,
    speed: found,
    roundMs: emitted && found ? (emitted * 1000) / found : null,
  };
}

/** Mean time of a classic step in a run that drafted nothing, in milliseconds, else null. */
export function classicStep(run) {
  const found = run.timings ? reported(run.timings) : null;
  return found && !found.proposed && found.speed ? 1000 / found.speed : null;
}

/**
 * The figures as texts, by the names that the page has for them.
 *
 * @param {import("./run.js").Run} run
 * @param {{ms: number, source: string}|null} step  a classic step, and where its time is from
 */
export function figureTexts(run, step) {
  const found = figuresOf(run);
  const about = found.live ? "about " : "";
  return {
    acceptance: acceptanceText(run, found, about),
    emitted: found.emitted ? about + digits(found.emitted) : noRounds(run, found),
    speed: found.speed ? about + digits(found.speed, 1) : "–",
    cost: costText(run, found, step, about),
    tokens: tokensText(run),
    widths: widthsText(run),
  };
}

function noRounds(run, found) {
  return run.over && !found.live && !found.proposed ? "no drafts" : "–";
}

function acceptanceText(run, found, about) {
  if (found.acceptance !== null) {
    const of = found.live ? "" : ` (${found.accepted} of ${found.proposed})`;
    return `${about}${digits(found.acceptance)}${of}`;
  }
  if (found.live && found.accepted) return run.over ? "unknown" : "known at the end";
  return noRounds(run, found);
}

function costText(run, found, step, about) {
  const classic = classicStep(run);
  if (classic !== null) return `1: a classic step took ${duration(classic)}`;
  if (found.roundMs === null) return noRounds(run, found);
  const ms = `${about}${duration(found.roundMs)}`;
  if (!step) return `${ms}; in classic steps unknown until a race has timed one`;
  return `${about}${digits(found.roundMs / step.ms)} classic steps (${step.source})`;
}

function tokensText(run) {
  if (!run.count) return "–";
  if (!run.flagged) return `${run.count}`;
  return `${run.count}, ${run.drafted} drafted`;
}

/** Rounds by width: the server writes pairs, or an object with the widths as names. */
function widthsText(run) {
  const widths = run.timings?.draft_widths ?? [];
  const pairs = Array.isArray(widths) ? widths : Object.entries(widths);
  return pairs.map(([width, rounds]) => `${width} (${counted(rounds, "round")})`).join(", ") || "–";
}
