// One answer on the page: title, clock, text with its marks, figures, decision, notices.

import { digits, figureTexts } from "./figures.js";
import { decisionText, phaseText } from "./words.js";

export class Column {
  /**
   * @param {HTMLTemplateElement} template
   * @param {string} title
   */
  constructor(template, title) {
    this.element = template.content.firstElementChild.cloneNode(true);
    const part = (selector) => this.element.querySelector(selector);
    this.clock = part(".clock");
    this.phase = part(".phase");
    this.answer = part(".answer");
    this.notice = part(".notice");
    this.decision = part(".decision");
    this.figures = new Map(
      [...this.element.querySelectorAll("[data-figure]")].map((dd) => [dd.dataset.figure, dd]),
    );
    part(".column-title").textContent = title;
    this.answer.setAttribute("aria-label", `${title}: text`);
    this.phase.textContent = "Not begun.";
  }

  /** Add pieces of text; neighbours of one origin share an element. */
  add(pieces) {
    for (const { text, origin } of pieces) {
      const last = this.answer.lastElementChild;
      if (last?.className === origin) {
        last.firstChild.appendData(text);
        continue;
      }
      const span = document.createElement("span");
      span.className = origin;
      span.textContent = text;
      this.answer.append(span);
    }
  }

  /** Show the time that has passed. */
  tick(run, now) {
    this.clock.textContent = `${digits(run.elapsed(now) / 1000, 1)} s`;
  }

  /** Show state and figures as they are now. */
  refresh(run, step, now) {
    this.tick(run, now);
    this.element.dataset.state = run.state;
    put(this.phase, phaseText(run));
    for (const [name, text] of Object.entries(figureTexts(run, step))) {
      put(this.figures.get(name), text);
    }
    put(this.decision, decisionText(run.timings?.decision));
  }

  /** Say why no request was sent. */
  fail(text) {
    this.element.dataset.state = "failed";
    put(this.phase, "No answer.");
    this.say(text, true);
  }

  /** Say what is odd or wrong, "" for nothing; an error stays visible beside the text. */
  say(text, wrong = false) {
    put(this.notice, text);
    this.notice.hidden = !text;
    this.notice.classList.toggle("wrong", wrong);
  }
}

/** Set a text only where it changes, which spares screen readers and layout. */
export function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
