// Requests to the app; responses are streamed line by line, and every error has a readable message.

const MAX_TRIES = 40; // while the app is busy
const token = new URLSearchParams(location.search).get("token");

// Replaces the browser's network errors by a readable one.
async function connected(promise) {
  try {
    return await promise;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The app does not respond. Is scorelens app still running?");
  }
}

async function send(path, options) {
  const url = token === null ? `api/${path}` : `api/${path}?token=${encodeURIComponent(token)}`;
  const response = await connected(fetch(url, options));
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  const error = new Error(body.error ?? `The app returned error ${response.status}.`);
  error.busy = response.status === 503;
  throw error;
}

async function sendWithRetries(path, options, onBusy) {
  for (let tries = 1; ; tries++) {
    try {
      return await send(path, options);
    } catch (error) {
      if (!error.busy || tries === MAX_TRIES) throw error;
      onBusy();
      await new Promise(resolve => setTimeout(resolve, 250 + 500 * Math.random()));
      options.signal?.throwIfAborted();
    }
  }
}

export const session = async () => (await send("session", {})).json();

export const upload = async (file, onBusy) =>
  (await sendWithRetries("picture", { method: "POST", body: file }, onBusy)).json();

// The messages of a response, as they arrive.
export async function* stream(path, query, signal, onBusy) {
  const response = await sendWithRetries(path, { method: "POST", body: JSON.stringify(query), signal }, onBusy);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await connected(reader.read());
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) yield JSON.parse(line);
  }
}
