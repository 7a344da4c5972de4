// Questions to the app: answers come line by line; every error is a sentence.

const TRIES = 40; // while the app is busy
const token = new URLSearchParams(location.search).get("token");

// What the browser calls a network error is a sentence here.
async function heard(promise) {
  try {
    return await promise;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The app does not answer. Is scorelens app still running?");
  }
}

async function send(path, options) {
  const address = token === null ? `api/${path}` : `api/${path}?token=${encodeURIComponent(token)}`;
  const answer = await heard(fetch(address, options));
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => ({}));
  const error = new Error(told.error ?? `The app answered with error ${answer.status}.`);
  error.busy = answer.status === 503;
  throw error;
}

async function patiently(path, options, wait) {
  for (let tries = 1; ; tries++) {
    try {
      return await send(path, options);
    } catch (error) {
      if (!error.busy || tries === TRIES) throw error;
      wait();
      await new Promise(resolve => setTimeout(resolve, 250 + 500 * Math.random()));
      options.signal?.throwIfAborted();
    }
  }
}

export const session = async () => (await send("session", {})).json();

export const upload = async (file, wait) => (await patiently("picture", { method: "POST", body: file }, wait)).json();

// Each line of the answer, as it comes.
export async function* stream(path, question, signal, wait) {
  const body = JSON.stringify(question);
  const answer = await patiently(path, { method: "POST", body, signal }, wait);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await heard(reader.read());
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) yield JSON.parse(line);
  }
}
