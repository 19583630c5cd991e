// What has been measured of cost by width, out of /v1/internal/mtp-policy. Pure.

import { digits } from "./figures.js";

/**
 * @typedef {{width: number, cost: number, emitted: number|null, speed: number|null,
 *   rounds: number|null}} Point  cost in the unit of the evidence
 */

/** The policy that stands for the pairing: the newest settled one, else the first. */
export function leadingPolicy(body) {
  const policies = Array.isArray(body?.policies) ? body.policies : [];
  return policies.find((policy) => Number.isFinite(policy.speedup)) ?? policies[0] ?? null;
}

/** Width that bursts have now, as far as it is known: the controller's, else the policy's. */
export function presentWidth(body) {
  const policy = leadingPolicy(body);
  return policy?.controller?.width ?? policy?.width ?? null;
}

/** Measured widths of the width controller, ascending, times in milliseconds. */
function measuredArms(body) {
  const policies = Array.isArray(body?.policies) ? body.policies : [];
  const controller = policies.find((policy) => policy.controller)?.controller;
  return (Array.isArray(controller?.widths) ? controller.widths : [])
    .filter((arm) => arm.width >= 1 && arm.measured_seconds > 0)
    .map((arm) => ({
      width: arm.width,
      ms: arm.measured_seconds * 1000,
      emitted: arm.measured_emitted_per_verify ?? null,
      speed: arm.tokens_per_second > 0 ? arm.tokens_per_second : null,
      rounds: arm.rounds ?? null,
    }))
    .sort((one, other) => one.width - other.width);
}

/** Widths for which a policy has its own figures. */
function settledPoints(body) {
  return (Array.isArray(body?.policies) ? body.policies : [])
    .filter((policy) => policy.width > 1 && policy.round_cost > 0)
    .map((policy) => ({
      width: policy.width,
      cost: policy.round_cost,
      emitted: policy.emitted_per_verify ?? null,
      speed: null,
      rounds: null,
    }));
}

/**
 * Time of a classic step, if it has been measured.
 *
 * @returns {{ms: number, source: string}|null}
 */
export function measuredStep(body) {
  const arms = measuredArms(body);
  const classic = arms.find((arm) => arm.width === 1);
  if (classic) return { ms: classic.ms, source: "step timed by the engine" };
  for (const point of settledPoints(body)) {
    const arm = arms.find((each) => each.width === point.width);
    if (arm) return { ms: arm.ms / point.cost, source: "step timed by the policy" };
  }
  return null;
}

/**
 * Cost by width, ready to be drawn.
 *
 * @param {object|null} body
 * @param {{ms: number}|null} [timed]  a classic step that was timed elsewhere, for evidence
 *   that has none
 * @returns {{unit: "classic steps"|"ms", points: Point[]}}  without points where nothing
 *   has been measured
 */
export function costByWidth(body, timed = null) {
  const arms = measuredArms(body);
  const settled = settledPoints(body);
  const step = measuredStep(body) ?? timed;
  if (arms.length && !step) {
    return { unit: "ms", points: arms.map(({ ms, ...arm }) => ({ ...arm, cost: ms })) };
  }
  const points = new Map();
  if (arms.length || settled.length) {
    points.set(1, { width: 1, cost: 1, emitted: 1, speed: null, rounds: null });
  }
  for (const point of settled) points.set(point.width, point);
  for (const { ms, ...arm } of arms) points.set(arm.width, { ...arm, cost: ms / step.ms });
  return {
    unit: "classic steps",
    points: [...points.values()].sort((one, other) => one.width - other.width),
  };
}

/** The chart in words. */
export function costText({ unit, points }) {
  if (!points.length) {
    return "Nothing has been measured yet. Ask something or run a race: the engine times its rounds while it works.";
  }
  const wins = points.filter((p) => p.width > 1 && p.emitted > p.cost).map((p) => p.width);
  const best = points.reduce((one, p) => ((p.speed ?? 0) > (one?.speed ?? 0) ? p : one), null);
  const parts = [`What a round costs, in ${unit}, by block width.`];
  if (unit === "classic steps" && points.some((p) => p.width > 1)) {
    parts.push(
      wins.length
        ? `Speculation pays where a verify emits more tokens than the round costs: at width ${wins.join(", ")}.`
        : "A verify emits fewer tokens than its round costs at every measured width: speculation does not pay.",
    );
  }
  if (best?.speed) parts.push(`Fastest: width ${best.width}, ${digits(best.speed, 1)} tokens per second.`);
  return parts.join(" ");
}
