// The server's state at the head of the page, and what it has measured.

import { ApiError, ask, health } from "./api.js";
import { drawCost, fillRows } from "./chart.js";
import { put } from "./column.js";
import { costByWidth, costText, leadingPolicy } from "./evidence.js";
import { errorText, healthText, policyText } from "./words.js";

const WHEN_READY = 30000;
const WHEN_NOT = 2000;

export class Server {
  /** @param {(error: ApiError) => void} onKeyWanted  called where a key is needed */
  constructor(onKeyWanted) {
    this.model = "";
    this.evidence = null; // the body of /v1/internal/mtp-policy
    this.raceStep = null; // time of a classic step, from the last race
    this.drawn = "";
    this.onKeyWanted = onKeyWanted;
    this.part = (name) => document.getElementById(name);
  }

  /** Watch the server for as long as the page is open. */
  async watch() {
    let ready = false;
    try {
      if (!document.hidden) {
        ready = await this.checkHealth();
        if (ready && !this.evidence) await this.readEvidence();
      }
    } finally {
      setTimeout(() => this.watch(), ready ? WHEN_READY : WHEN_NOT);
    }
  }

  /** Ask for the state and show it; returns whether the server is ready. */
  async checkHealth() {
    let found;
    try {
      found = await health();
    } catch (error) {
      found = { ok: false, status: "down", reason: error.message };
    }
    const { level, text, progress } = healthText(found);
    if (level !== "ready") this.model = ""; // another one may be loaded next
    this.part("health").dataset.state = level;
    put(this.part("health-text"), text);
    this.#showProgress(progress);
    return level === "ready";
  }

  #showProgress(progress) {
    const bar = this.part("health-progress");
    bar.hidden = !progress;
    if (progress?.total > 0) {
      bar.max = progress.total;
      bar.value = Math.min(progress.done ?? 0, progress.total);
    } else {
      bar.removeAttribute("value");
    }
  }

  /** Name of the model to ask. */
  async modelName() {
    if (!this.model) this.model = (await ask("v1/models")).data?.[0]?.id ?? "";
    return this.model;
  }

  /** Ask what has been measured and show it; a failure is shown in its place. */
  async readEvidence() {
    try {
      this.evidence = await ask("v1/internal/mtp-policy");
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.status === 401) this.onKeyWanted(error);
      if (!this.evidence) {
        put(this.part("chart-text"), `What has been measured is unknown: ${errorText(error)}`);
      }
      return;
    }
    this.#showEvidence();
  }

  #showEvidence() {
    put(this.part("gate-now"), policyText(leadingPolicy(this.evidence)));
    const found = costByWidth(this.evidence, this.raceStep);
    const drawn = JSON.stringify(found);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const text = costText(found);
    put(this.part("chart-text"), text);
    const some = found.points.length > 0;
    this.part("chart").hidden = this.part("chart-details").hidden = !some;
    if (!some) return;
    drawCost(this.part("chart"), found, text);
    fillRows(this.part("chart-rows"), found);
  }
}
