// Sentences for what the server says in labels. Labels may grow: an unknown one says nothing. Pure.

import { counted } from "./figures.js";

const DECIDERS = {
  request: "The request",
  engine: "The engine",
  exactness: "The exactness probe",
  override: "The operator’s setting",
  policy: "The adaptive policy",
  gate: "The static gate",
  default: "The default",
};

const POLICY_STATES = {
  forced: "An operator’s setting decides, nothing is measured.",
  profiling: "The policy is still measuring this pairing.",
  settled: "The policy has measured this pairing.",
  exactness_declined: "The exactness probe has declined this pairing.",
  static: "The static gate decides.",
};

const FINISHES = {
  stop: "The model ended the answer.",
  length: "Cut at the limit of tokens.",
  cancelled: "Cancelled.",
  timeout: "The time for this request was over.",
  tool_calls: "The model called a tool.",
  content_filter: "Cut by a filter.",
};

/** A text as a sentence: a capital first, a full stop last. */
export function sentence(text) {
  const trimmed = String(text ?? "").trim();
  if (!trimmed) return "";
  const begun = trimmed[0].toUpperCase() + trimmed.slice(1);
  return /[.!?…]$/.test(begun) ? begun : `${begun}.`;
}

/** What was decided about speculation, by whom and why. */
export function decisionText(decision) {
  if (!decision || typeof decision.run !== "boolean") return "";
  const who = DECIDERS[decision.source];
  const what = decision.run ? "on" : "off";
  const begun = who ? `${who} turned speculation ${what}` : `Speculation was ${what}`;
  const width = decision.run && decision.width > 1 ? `, width ${decision.width}` : "";
  const reason = String(decision.reason ?? "").trim();
  const news = reason && reason.toLowerCase() !== begun.toLowerCase(); // not the same twice
  const said = sentence(`${begun}${width}${news ? `: ${reason}` : ""}`);
  const outcome = String(decision.outcome ?? "").trim();
  return outcome && outcome !== reason ? `${said} ${sentence(`What came of it: ${outcome}`)}` : said;
}

/** What the gate would say now, for one policy of /v1/internal/mtp-policy. */
export function policyText(policy) {
  if (!policy) return "";
  const state = POLICY_STATES[policy.state] ?? "";
  const run = typeof policy.run === "boolean" ? `Speculation is ${policy.run ? "on" : "off"} by default` : "";
  const why = run && policy.reason ? `${run}: ${policy.reason}` : run || policy.reason;
  const width = policy.width > 1 ? ` (width ${policy.width})` : "";
  return [state, why ? sentence(why + width) : ""].filter(Boolean).join(" ");
}

/** How a run ended or stands. */
export function phaseText(run) {
  const tokens = counted(run.count, "token");
  switch (run.state) {
    case "waiting":
      return "Waiting for the first token.";
    case "streaming":
      return "Writing.";
    case "done":
      return `${FINISHES[run.finish] ?? "Done."} ${sentence(tokens)}`;
    case "stopped":
      return `Stopped by you after ${tokens}.`;
    default:
      return run.text ? `Broken off after ${tokens}; what arrived is kept.` : "No answer.";
  }
}

/** How a run ended, in one line for screen readers. */
export function endText(run) {
  return `${run.label}: ${run.error ? `${phaseText(run)} ${errorText(run.error)}` : phaseText(run)}`;
}

/** What went wrong, and what to do about it. */
export function errorText(error) {
  const said = sentence(error?.message ?? "something went wrong");
  const advice = adviceOn(error);
  const code = error?.code && !error.code.startsWith("page.") ? ` (${error.code})` : "";
  return [said + code, advice].filter(Boolean).join(" ");
}

function adviceOn(error) {
  const wait = Number(error?.retryAfter);
  if (error?.retryAfter && Number.isFinite(wait)) return `Try again in ${wait} s.`;
  switch (error?.status) {
    case 401:
      return "Enter a key above.";
    case 429:
      return "The server is busy. Try again soon.";
    case 503:
      return "The engine is not ready. Try again soon.";
    default:
      return error?.code?.startsWith("page.") ? "Try again." : "";
  }
}

/**
 * State of the server for the head of the page.
 *
 * @param {object} health  body of /health, with `ok`: whether its HTTP status was a good one
 * @returns {{level: "ready"|"busy"|"down", text: string,
 *   progress: {done?: number, total?: number}|null}}  a progress while the model is loaded
 */
export function healthText(health) {
  const model = health.model ? `: ${health.model}` : "";
  if (health.ok && health.status === "ok") {
    return { level: "ready", text: `Ready${model}`, progress: null };
  }
  const state = health.state ?? health.status;
  if (state === "loading" || state === "connecting") {
    const progress = health.progress ?? health;
    const text = progress.label ? `Loading: ${progress.label}` : `Loading${model}`;
    return { level: "busy", text, progress };
  }
  const reason = health.error?.message ?? health.reason;
  const text = reason ? `Not ready: ${reason}` : "The server is not ready.";
  return { level: state === "draining" ? "busy" : "down", text, progress: null };
}
