// Talks to the server this page came from. Addresses are relative, so a path prefix works.

import { EventParser } from "./sse.js";

const KEY_NAME = "mlxcel-api-key";
let keyHere = "";

/** The API key of this tab, "" without one. */
export function apiKey() {
  try {
    return sessionStorage.getItem(KEY_NAME) ?? "";
  } catch {
    return keyHere; // storage is switched off: the key lives as long as the page
  }
}

/** Keep an API key for this tab only. */
export function keepApiKey(key) {
  keyHere = key;
  try {
    sessionStorage.setItem(KEY_NAME, key);
  } catch {
    // Storage is switched off.
  }
}

/** What the server said was wrong, or that it could not be reached. */
export class ApiError extends Error {
  /**
   * @param {string} message  for people
   * @param {{status?: number, code?: string, param?: string, retryAfter?: string}} [facts]
   */
  constructor(message, { status = 0, code = "", param = "", retryAfter = "" } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.param = param;
    this.retryAfter = retryAfter;
  }
}

function headers() {
  const key = apiKey();
  return key ? { Authorization: `Bearer ${key}` } : {};
}

/** The error object of a body, or null where it has none. */
export function errorOf(body) {
  const error = body?.error;
  return error && typeof error.message === "string" ? error : null;
}

async function refusal(response) {
  let error = null;
  try {
    error = errorOf(await response.json());
  } catch {
    // Not the server's own answer: a proxy's page, or a body that was cut off.
  }
  return new ApiError(error?.message ?? `the server answered ${response.status}`, {
    status: response.status,
    code: error?.code ?? "",
    param: error?.param ?? "",
    retryAfter: response.headers.get("Retry-After") ?? "",
  });
}

async function reach(path, options = {}) {
  try {
    return await fetch(path, {
      cache: "no-store",
      ...options,
      headers: { ...headers(), ...options.headers },
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("the server cannot be reached", { code: "page.unreachable" });
  }
}

/** GET a JSON object; throws ApiError. */
export async function ask(path, signal) {
  const response = await reach(path, { signal });
  if (!response.ok) throw await refusal(response);
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(`the server's answer to ${path} is no JSON`, { status: response.status });
  }
}

/** State of the server, with its HTTP status; it says more than the status when it is not ready. */
export async function health(signal) {
  const response = await reach("health", { signal });
  try {
    return { ok: response.ok, ...(await response.json()) };
  } catch {
    return { ok: response.ok, status: response.ok ? "unknown" : "down" };
  }
}

/**
 * Send a chat request and hand on what comes, in order.
 *
 * @param {object} body  of POST /v1/chat/completions
 * @param {AbortSignal} signal  closes the connection, which cancels the request
 * @param {{chunk: (chunk: object) => void, alive: () => void}} on
 * @returns {Promise<void>}  at `[DONE]`; rejects with ApiError or AbortError before that
 */
export async function streamChat(body, signal, on) {
  const response = await reach("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", Accept: "text/event-stream" },
    body: JSON.stringify(body),
    signal,
  });
  if (!response.ok) throw await refusal(response);
  if (!(response.headers.get("Content-Type") ?? "").startsWith("text/event-stream")) {
    throw new ApiError("the server sent something other than a stream", { code: "page.type" });
  }
  const parser = new EventParser();
  for await (const text of texts(response.body.getReader())) {
    on.alive();
    for (const event of parser.feed(text)) {
      if (event.event === "comment") continue;
      if (event.data === "[DONE]") return;
      on.chunk(chunkOf(event));
    }
  }
  throw new ApiError("the connection ended before the answer did", { code: "page.cut" });
}

/** Decoded pieces of a body; a broken connection becomes an ApiError. */
async function* texts(reader) {
  const decoder = new TextDecoder();
  try {
    for (;;) {
      let piece;
      try {
        piece = await reader.read();
      } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new ApiError("the connection broke", { code: "page.broken" });
      }
      if (piece.done) return;
      yield decoder.decode(piece.value, { stream: true });
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function chunkOf(event) {
  let chunk;
  try {
    chunk = JSON.parse(event.data);
  } catch {
    throw new ApiError("a part of the stream is no JSON", { code: "page.part" });
  }
  const error = errorOf(chunk);
  if (error) throw new ApiError(error.message, { code: error.code ?? "", param: error.param ?? "" });
  if (event.event === "error") throw new ApiError("the server ended the stream with an error");
  return chunk;
}
