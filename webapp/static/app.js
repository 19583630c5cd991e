// The page: connects the controls with runs, races and the server's state.

import { Announcer } from "./announcer.js";
import { keepApiKey } from "./api.js";
import { Column } from "./column.js";
import { measuredStep, presentWidth } from "./evidence.js";
import { classicStep } from "./figures.js";
import { generate } from "./generate.js";
import { compare } from "./race.js";
import { Run } from "./run.js";
import { Server } from "./server.js";
import { readSettings, requestOf } from "./settings.js";
import { endText, errorText } from "./words.js";

const part = (name) => document.getElementById(name);
const announcer = new Announcer(
  (text) => {
    part("announcer").textContent = text;
  },
  () => performance.now(),
);
const server = new Server((error) => wantKey(error, null));

const NARROW = matchMedia("(max-width: 48rem)"); // as in style.css, where Stop stays in sight

let stopping = null; // AbortController of what runs now
let again = null; // what to do once a key has been entered
let usedSeed = null;

/** Time of a classic step, from the last race if there was one, else from the evidence. */
function step() {
  return server.raceStep ?? measuredStep(server.evidence);
}

function wantKey(error, action) {
  again = action ?? again;
  part("key-form").hidden = false;
  part("key-why").textContent = `${errorText({ message: error.message })} The key is kept until this tab is closed.`;
  if (action) part("key").focus();
}

function useKey(event) {
  event.preventDefault();
  keepApiKey(part("key").value.trim());
  part("key").value = "";
  part("key-form").hidden = true;
  part("prompt").focus();
  const action = again;
  again = null;
  server.readEvidence();
  if (action) action();
}

/** Show empty columns and return them. */
function layOut(titles) {
  const columns = titles.map((title) => new Column(part("column"), title));
  part("columns").replaceChildren(...columns.map((column) => column.element));
  part("columns").classList.toggle("two", columns.length > 1);
  part("output-title").textContent = columns.length > 1 ? "Race" : "Answer";
  part("verdict").hidden = true;
  part("output").hidden = false;
  if (NARROW.matches) part("output").scrollIntoView({ block: "start" });
  return columns;
}

function showSeed(seed) {
  usedSeed = seed;
  part("seed-used").textContent = String(seed);
  part("seed-line").hidden = false;
}

/**
 * Do something that Stop can end; nothing else can be begun meanwhile. Focus that would be
 * lost with a disabled button goes to Stop and comes back.
 *
 * @param {HTMLButtonElement} button  that stands for it
 * @param {(signal: AbortSignal) => Promise<void>} action
 */
async function busy(button, action) {
  if (stopping) return;
  const beginners = [part("ask"), part("race")];
  const focused = beginners.includes(document.activeElement);
  stopping = new AbortController();
  part("stop").disabled = false;
  if (focused) part("stop").focus();
  for (const each of beginners) each.disabled = true;
  part("output").setAttribute("aria-busy", "true");
  document.body.classList.add("busy");
  try {
    await action(stopping.signal);
  } finally {
    stopping = null;
    for (const each of beginners) each.disabled = false;
    if (document.activeElement === part("stop")) button.focus();
    part("stop").disabled = true;
    part("output").removeAttribute("aria-busy");
    document.body.classList.remove("busy");
  }
}

/** One run in a column; returns it when it is over. */
async function runIn(column, label, settings, { signal, aloud, retry }) {
  const drafting = settings.speculation !== "off";
  const width = drafting ? (settings.width ?? presentWidth(server.evidence)) : null;
  const run = new Run({ label, width, began: performance.now() });
  const body = requestOf(settings, server.model);
  await generate({ column, run, body, signal, announcer: aloud ? announcer : null, step });
  if (run.error?.status === 401) wantKey(run.error, retry);
  return run;
}

/** Find out the model's name; says in the column why it cannot be, and returns false. */
async function modelKnown(column, retry) {
  try {
    await server.modelName();
    return true;
  } catch (error) {
    column.fail(errorText(error));
    announcer.status(errorText(error));
    if (error.status === 401) wantKey(error, retry);
    return false;
  }
}

/** Begin what a button stands for, with the present settings, if they are valid. */
async function begin(button, action) {
  const form = part("ask-form");
  if (!form.reportValidity()) return;
  const settings = readSettings(form);
  await busy(button, (signal) => action(settings, signal));
  server.readEvidence();
}

function askOnce() {
  return begin(part("ask"), async (settings, signal) => {
    const [column] = layOut(["Answer"]);
    showSeed(settings.seed);
    announcer.status("The answer begins.");
    if (!(await modelKnown(column, askOnce))) return;
    const run = await runIn(column, "Answer", settings, { signal, aloud: true, retry: askOnce });
    announcer.finish(endText(run));
  });
}

function race() {
  return begin(part("race"), async (settings, signal) => {
    const names = ["Classic", "Speculative"];
    const columns = layOut(names);
    showSeed(settings.seed);
    announcer.status("The race begins: classic first.");
    if (!(await modelKnown(columns[0], race))) return;
    const runs = [];
    for (const [at, speculation] of ["off", "on"].entries()) {
      const how = { signal, aloud: false, retry: race };
      runs.push(await runIn(columns[at], names[at], { ...settings, speculation }, how));
      announcer.status(endText(runs[at]));
      if (runs[at].state !== "done") break;
      const timed = at === 0 ? classicStep(runs[0]) : null;
      if (timed) server.raceStep = { ms: timed, source: "step timed in the last race" };
    }
    showVerdict(runs);
  });
}

function showVerdict([classic, speculative]) {
  const found = compare(classic, speculative);
  part("verdict").dataset.equal = String(found.equal);
  part("verdict-texts").textContent = found.texts;
  part("verdict-times").textContent = found.times;
  part("verdict").hidden = false;
  const ending = endText(speculative ?? classic);
  announcer.status(`${ending} ${found.texts} ${found.times}`);
}

function onKey(event) {
  if (event.key === "Escape") stopping?.abort();
  const sent = event.key === "Enter" && (event.ctrlKey || event.metaKey);
  if (sent && event.target === part("prompt")) {
    event.preventDefault();
    askOnce();
  }
}

part("key-form").addEventListener("submit", useKey);
part("ask-form").addEventListener("submit", (event) => {
  event.preventDefault();
  askOnce();
});
part("race").addEventListener("click", race);
part("stop").addEventListener("click", () => stopping?.abort());
// A browser that keeps the page for the way back would keep its stream too, which nobody reads.
window.addEventListener("pagehide", () => stopping?.abort());
part("keep-seed").addEventListener("click", () => {
  part("seed").value = String(usedSeed);
  announcer.status(`Seed ${usedSeed} is kept.`);
});
part("marks").addEventListener("change", (event) => {
  part("columns").classList.toggle("unmarked", !event.target.checked);
});
document.addEventListener("keydown", onKey);
server.watch();
