// Tests of the page's pure scripts; tests/web/test_page_scripts.py lays them beside those.

import assert from "node:assert/strict";
import test from "node:test";

import { Announcer, sentenceEnd, wordEnd } from "./announcer.js";
import { layout, niceStep } from "./chart.js";
import { costByWidth, costText, leadingPolicy, measuredStep, presentWidth } from "./evidence.js";
import { classicStep, duration, figureTexts, figuresOf } from "./figures.js";
import { quietText } from "./generate.js";
import { compare, firstDifference } from "./race.js";
import { Run, taken } from "./run.js";
import { requestOf } from "./settings.js";
import { EventParser } from "./sse.js";
import { decisionText, errorText, healthText, phaseText, policyText, sentence } from "./words.js";

const message = (data) => ({ event: "message", data });

test("events come whole whatever the borders of the pieces", () => {
  const text = "\uFEFFdata: a\r\n\r\n: keep-alive\n\nevent: error\ndata: b\ndata:c\n\ndata\n\ndata: é\r\r";
  const expected = [
    message("a"),
    { event: "comment", data: "keep-alive" },
    { event: "error", data: "b\nc" },
    message(""),
  ];
  for (let size = 1; size <= text.length; size += 1) {
    const parser = new EventParser();
    const found = [];
    for (let at = 0; at < text.length; at += size) found.push(...parser.feed(text.slice(at, at + size)));
    assert.deepEqual(found, expected, `pieces of ${size}`);
    assert.deepEqual(parser.feed("\n"), [message("é")]); // that line feed belongs to the pair
  }
});

test("an event that is not closed is not given out", () => {
  assert.deepEqual(new EventParser().feed("data: a\n"), []);
});

test("pieces follow the origin of tokens and always join to the content", () => {
  const tokens = [
    { text: "a", drafted: true },
    { text: "b", drafted: true },
    { text: "", drafted: false },
    { text: "c", drafted: false },
  ];
  const chunk = (content, with_) => ({ choices: [{ delta: { content }, tokens: with_ }] });
  const pieces = (...chunks) => {
    const run = new Run({ label: "x", began: 0 });
    return chunks.map((each) => run.take(each, 1));
  };
  assert.deepEqual(pieces(chunk("abc", tokens)), [
    [
      { text: "ab", origin: "drafted" },
      { text: "c", origin: "target" },
    ],
  ]);
  // Text that is held back for a while keeps the origin of its tokens.
  assert.deepEqual(pieces(chunk("", tokens), chunk("a", []), chunk("bcd", [])).slice(1), [
    [{ text: "a", origin: "drafted" }],
    [
      { text: "b", origin: "drafted" },
      { text: "c", origin: "target" },
      { text: "d", origin: "unknown" },
    ],
  ]);
  for (const content of ["", "a", "ab", "abX", "Xab", "abcde", "bc"]) {
    assert.equal(pieces(chunk(content, tokens))[0].map((p) => p.text).join(""), content);
    assert.equal(taken(content, []).map((p) => p.text).join(""), content);
  }
});

function runOf({ text = "abcdef", flags = "000000", timings = null, step = 10, width = null } = {}) {
  const run = new Run({ label: "x", width, began: 0 });
  [...text].forEach((letter, at) => {
    const tokens = [{ id: letter.charCodeAt(0), text: letter, drafted: flags[at] === "1" }];
    run.take({ choices: [{ delta: { content: letter }, tokens }] }, 100 + at * step);
  });
  run.take({ choices: [{ delta: {}, finish_reason: "stop" }], timings, seed: 0 }, 100 + text.length * step);
  run.end("done", 100 + text.length * step);
  return run;
}

const classicTimings = { predicted_n: 6, predicted_ms: 500, predicted_per_second: 10 };
const draftTimings = {
  ...classicTimings,
  predicted_ms: 250,
  predicted_per_second: 20,
  draft_n: 6,
  draft_n_accepted: 3,
  draft_rounds: 2,
  draft_widths: [[1, 1], [4, 1]],
};

test("figures of the server are taken as they are", () => {
  const found = figuresOf(runOf({ flags: "011010", timings: draftTimings }));
  assert.equal(found.live, false);
  assert.equal(found.acceptance, 0.5);
  assert.equal(found.emitted, 2.5);
  assert.equal(found.roundMs, 125);
  const texts = figureTexts(runOf({ flags: "011010", timings: draftTimings }), { ms: 100, source: "s" });
  assert.equal(texts.acceptance, "0.50 (3 of 6)");
  assert.equal(texts.cost, "1.25 classic steps (s)");
  assert.equal(texts.tokens, "6, 3 drafted");
  assert.equal(texts.widths, "1 (1 round), 4 (1 round)");
  const named = { ...draftTimings, draft_widths: { 1: 1, 4: 1 } };
  assert.equal(figureTexts(runOf({ timings: named }), null).widths, texts.widths);
});

test("without the time of a classic step the round cost is said to be unknown", () => {
  const texts = figureTexts(runOf({ flags: "011010", timings: draftTimings }), null);
  assert.match(texts.cost, /^0\.13 s; in classic steps unknown/);
});

test("live figures count one token of the target a round", () => {
  const found = figuresOf(runOf({ flags: "011010", width: 4 }));
  assert.equal(found.live, true);
  assert.equal(found.rounds, 2);
  assert.equal(found.emitted, 2.5);
  assert.equal(found.acceptance, 0.5);
  assert.equal(found.speed, 100);
  assert.match(figureTexts(runOf({ flags: "011010", width: 4 }), null).emitted, /^about 2\.50$/);
});

test("a classic run has a step time and no drafts", () => {
  const run = runOf({ timings: classicTimings });
  assert.equal(classicStep(run), 100);
  assert.equal(figureTexts(run, null).acceptance, "no drafts");
  assert.equal(classicStep(runOf({ timings: draftTimings })), null);
  assert.equal(classicStep(runOf()), null);
});

test("figures of nothing are dashes", () => {
  const texts = figureTexts(new Run({ label: "x", began: 0 }), null);
  assert.deepEqual(new Set(Object.values(texts)), new Set(["–"]));
  assert.equal(duration(undefined), "–");
  assert.equal(duration(46), "46.0 ms");
  assert.equal(duration(4600), "4.60 s");
});

test("a seed of 0 is a seed", () => {
  assert.equal(runOf().seed, 0);
  const run = new Run({ label: "x", began: 0 });
  run.take({ choices: [{ delta: {}, seed: 5 }] }, 1);
  assert.equal(run.seed, 5);
  const settings = { prompt: "p", speculation: "on", width: null, temperature: 0, maxTokens: 1, seed: 0 };
  assert.equal(requestOf(settings, "m").seed, 0);
  assert.equal("draft_width" in requestOf(settings, "m"), false);
  assert.equal(requestOf({ ...settings, width: 3 }, "m").draft_width, 3);
  assert.equal("draft_width" in requestOf({ ...settings, width: 3, speculation: "off" }, "m"), false);
});

test("a race compares texts, tokens and times", () => {
  const classic = runOf({ timings: classicTimings });
  const fast = runOf({ flags: "011010", timings: draftTimings });
  const found = compare(classic, fast);
  assert.equal(found.equal, true);
  assert.equal(found.texts, "The texts are equal, all 6 tokens.");
  assert.equal(found.ratio, 2);
  assert.match(found.times, /Classic wrote for 0\.50 s, speculative for 0\.25 s: speculation was 2\.00 times as fast/);
  assert.match(found.times, /A round cost 1\.25 classic steps and emitted 2\.50 tokens/);
  const slow = compare(fast, classic).times;
  assert.match(slow, /took 2\.00 times as long/);
});

test("a race says where texts part", () => {
  const classic = runOf({ timings: classicTimings });
  const other = compare(classic, runOf({ text: "abXdef", timings: draftTimings }));
  assert.equal(other.equal, false);
  assert.equal(other.texts, "The texts differ, from token 3 on.");
  const shorter = compare(classic, runOf({ text: "abc", timings: draftTimings }));
  assert.equal(shorter.texts, "The texts differ, from token 4 on.");
  assert.equal(firstDifference("ab", "ab"), -1);
});

test("a race that did not end has no result", () => {
  const stopped = runOf();
  stopped.state = "stopped";
  assert.equal(compare(runOf(), stopped).equal, null);
  assert.equal(compare(stopped, undefined).equal, null);
});

test("sentences for labels, and silence for unknown ones", () => {
  assert.equal(
    decisionText({ run: true, source: "policy", reason: "measured 1.85x", width: 4 }),
    "The adaptive policy turned speculation on, width 4: measured 1.85x.",
  );
  assert.equal(decisionText({ run: false, source: "new", reason: "", width: 1 }), "Speculation was off.");
  const off = { run: false, source: "request", reason: "the request turned speculation off" };
  assert.equal(decisionText(off), "The request turned speculation off.");
  assert.equal(
    decisionText({ ...off, outcome: "parked" }),
    "The request turned speculation off. What came of it: parked.",
  );
  assert.equal(decisionText({ ...off, outcome: off.reason }), "The request turned speculation off.");
  assert.equal(decisionText(undefined), "");
  assert.equal(policyText({ state: "new" }), "");
  assert.match(policyText({ state: "profiling", run: true, reason: "r", width: 4 }), /still measuring.*r \(width 4\)\.$/);
  assert.equal(sentence("ok"), "Ok.");
  assert.equal(sentence(null), "");
});

test("states and errors in words", () => {
  assert.match(phaseText(runOf()), /^The model ended the answer\. 6 tokens\.$/);
  const failed = runOf();
  failed.end("failed", 1, new Error("x"));
  assert.equal(phaseText(failed), "Broken off after 6 tokens; what arrived is kept.");
  assert.equal(errorText({ message: "busy", status: 429, code: "capacity.queue", retryAfter: "3" }), "Busy. (capacity.queue) Try again in 3 s.");
  assert.equal(errorText({ message: "the connection broke", code: "page.broken" }), "The connection broke. Try again.");
  const ready = { level: "ready", text: "Ready: demo", progress: null };
  assert.deepEqual(healthText({ ok: true, status: "ok", model: "demo" }), ready);
  for (const loading of [
    { status: "loading", progress: { label: "weights", done: 1 } },
    { status: "unavailable", state: "loading", label: "weights", done: 1, error: { message: "x" } },
  ]) {
    const { level, text, progress } = healthText({ ok: false, ...loading });
    assert.deepEqual([level, text, progress.done], ["busy", "Loading: weights", 1]);
  }
  const gone = { ok: false, status: "unavailable", state: "failed", error: { message: "no memory" } };
  assert.deepEqual(healthText(gone), { level: "down", text: "Not ready: no memory", progress: null });
  assert.equal(healthText({ ok: false, status: "unavailable", state: "draining" }).level, "busy");
  assert.equal(healthText({ ok: false, status: "down" }).text, "The server is not ready.");
});

test("a quiet stream is noticed", () => {
  const run = new Run({ label: "x", began: 0 });
  assert.equal(quietText(run, 0, 4000), "");
  assert.equal(quietText(run, 0, 7200), "No token for 7 s. Stop ends the wait.");
  assert.match(quietText(run, 6000, 7200), /heard 1 s ago/);
});

const arm = (width, seconds, emitted) => ({
  width, rounds: 9, tokens_per_second: emitted / seconds, emitted_per_verify: emitted,
  measured_emitted_per_verify: emitted, measured_seconds: seconds,
});
const measured = (...widths) => ({ policies: [{ state: "settled", width: 4, controller: { width: 3, widths } }] });

test("cost by width comes from the controller, in classic steps where one was timed", () => {
  const body = measured(arm(1, 0.05, 1), arm(4, 0.07, 2.5), { width: 5, measured_seconds: null });
  const found = costByWidth(body);
  assert.equal(found.unit, "classic steps");
  assert.deepEqual(found.points.map((p) => [p.width, +p.cost.toFixed(6)]), [[1, 1], [4, 1.4]]);
  assert.equal(presentWidth(body), 3);
  assert.match(costText(found), /pays .* at width 4\. Fastest: width 4, 35\.7 tokens/);
  assert.equal(costByWidth(measured(arm(4, 0.07, 2.5))).unit, "ms");
  const raced = costByWidth(measured(arm(4, 0.07, 2.5)), { ms: 50 });
  assert.deepEqual(raced.points.map((p) => [p.width, +p.cost.toFixed(6)]), [[1, 1], [4, 1.4]]);
});

test("the policy's own figures do where the controller has none", () => {
  const policy = { width: 4, round_cost: 1.5, emitted_per_verify: 1.2, speedup: 0.8, controller: null };
  const found = costByWidth({ policies: [{ width: 2 }, policy] });
  assert.deepEqual(found.points.map((p) => [p.width, p.cost]), [[1, 1], [4, 1.5]]);
  assert.match(costText(found), /does not pay/);
  assert.equal(leadingPolicy({ policies: [{ width: 2 }, policy] }), policy);
  const step = measuredStep({ policies: [{ ...policy, controller: { widths: [arm(4, 0.06, 1.2)] } }] });
  assert.equal(step.ms, 40);
});

test("nothing measured is said", () => {
  for (const body of [null, {}, { policies: [] }, { policies: [{ state: "profiling", width: 4 }] }]) {
    assert.equal(costByWidth(body).points.length, 0);
    assert.match(costText(costByWidth(body)), /^Nothing has been measured yet/);
    assert.equal(measuredStep(body), null);
  }
});

test("the drawing fits its points", () => {
  assert.deepEqual([0.9, 1.4, 3, 8, 70].map((range) => niceStep(range, 5)), [0.2, 0.5, 1, 2, 20]);
  const at = layout([{ width: 1, cost: 1, emitted: 1 }, { width: 4, cost: 1.4, emitted: 2.6 }]);
  assert.deepEqual(at.widths, [1, 2, 3, 4]);
  assert.equal(at.ticks.at(-1) >= 2.6, true);
  assert.equal(at.x(1) < at.x(4) && at.y(0) > at.y(2.6) && at.y(2.6) > 0, true);
  assert.equal(layout([{ width: 1, cost: 1, emitted: null }]).x(2) > 0, true);
});

test("an answer is read out by sentences, with pauses", () => {
  let now = 0;
  const said = [];
  const announcer = new Announcer((text) => said.push(text), () => now);
  announcer.add("One. Two");
  announcer.tick();
  assert.deepEqual(said, ["One."]);
  announcer.add(" is here. Three");
  announcer.tick();
  assert.equal(said.length, 1);
  now = 2000;
  announcer.tick();
  assert.deepEqual(said[1], "Two is here.");
  now = 8001;
  announcer.add(" goes on");
  announcer.tick();
  assert.deepEqual(said[2], "Three goes");
  announcer.finish("Done.");
  assert.deepEqual(said[3], "on\nDone.");
  assert.equal(sentenceEnd("3.14 is pi"), 0);
  assert.equal(wordEnd("word"), 0);
});
