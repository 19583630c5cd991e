// The controls of the page as values, and as a request.

/**
 * @typedef {{prompt: string, speculation: string, width: number|null, temperature: number,
 *   maxTokens: number, seed: number}} Settings
 */

/** A random seed that any number type keeps exactly. */
export function drawSeed() {
  return crypto.getRandomValues(new Uint32Array(1))[0];
}

/** A whole number of a field, null where it is empty; 0 is a number. */
function whole(field) {
  return field.value === "" ? null : field.valueAsNumber;
}

/**
 * Values of the controls; an empty seed is drawn here, so that it is known and two runs share it.
 *
 * @param {HTMLFormElement} form  found valid
 * @returns {Settings}
 */
export function readSettings(form) {
  const field = (name) => form.querySelector(`#${name}`);
  return {
    prompt: field("prompt").value,
    speculation: field("speculation").value,
    width: whole(field("width")),
    temperature: field("temperature").valueAsNumber,
    maxTokens: whole(field("max-tokens")),
    seed: whole(field("seed")) ?? drawSeed(),
  };
}

/**
 * Body of POST /v1/chat/completions.
 *
 * @param {Settings} settings
 * @param {string} model
 */
export function requestOf(settings, model) {
  const body = {
    model,
    messages: [{ role: "user", content: settings.prompt }],
    stream: true,
    stream_options: { include_usage: true },
    return_tokens: true,
    speculation: settings.speculation,
    temperature: settings.temperature,
    max_tokens: settings.maxTokens,
    seed: settings.seed,
  };
  if (settings.width !== null && settings.speculation !== "off") body.draft_width = settings.width;
  return body;
}
