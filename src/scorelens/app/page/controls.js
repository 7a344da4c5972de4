// The bar at the top, the keyboard, and uploads.

import { byId, el, sigmaText } from "./dom.js";
import * as server from "./server.js";
import { fitsUrl } from "./state.js";
import { hideError, setStatus, showError } from "./status.js";

const FRAME = 700; // milliseconds per step while playing
const ARROWS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

let session, getState, actions, playing = null;

export function init(theSession, theGetState, theActions) {
  [session, getState, actions] = [theSession, theGetState, theActions];
  byId("steps").append(...session.steps.map(steps => el("option", { value: steps, textContent: steps })));
  byId("reference").append(...session.models.map(({ id, label }) => el("option", { value: id, textContent: label })));
  byId("seed").onchange = event => actions.seed(+event.target.value);
  byId("seed-less").onclick = () => actions.seed(getState().seed - 1);
  byId("seed-more").onclick = () => actions.seed(getState().seed + 1);
  byId("step").oninput = event => actions.step(+event.target.value);
  byId("steps").onchange = event => actions.steps(+event.target.value);
  byId("reference").onchange = event => actions.reference(event.target.value);
  byId("play").onclick = () => play(playing === null);
  byId("cancel").onclick = stop;
  byId("from-noise").onclick = () => actions.picture(null);
  byId("from-picture").onclick = () => byId("file").click();
  byId("file").onchange = ({ target }) => {
    if (target.files.length) upload(target.files[0]);
    target.value = ""; // so that the same file can be chosen again
  };
  byId("error").lastElementChild.onclick = hideError;
  addEventListener("keydown", onKey);
  acceptDrops();
}

export function render({ state, sigma }) {
  const { seed, step, steps, reference, picture } = state;
  if (document.activeElement !== byId("seed")) byId("seed").value = seed;
  byId("step").max = steps - 1;
  byId("step").value = step;
  byId("step").setAttribute("aria-valuetext", `step ${step + 1} of ${steps}, ${sigmaText(sigma)}`);
  byId("level").textContent = sigmaText(sigma);
  byId("steps").value = steps;
  byId("reference").value = reference;
  byId("from-noise").setAttribute("aria-pressed", String(picture === null));
  byId("from-picture").setAttribute("aria-pressed", String(picture !== null));
}

function stop() {
  play(false);
  actions.cancel();
}

function play(on) {
  clearInterval(playing);
  playing = on ? setInterval(() => actions.step((getState().step + 1) % getState().steps), FRAME) : null;
  byId("play").setAttribute("aria-pressed", String(on));
  byId("play").textContent = on ? "❚❚" : "▶";
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") stop();
  if (event.target.matches?.("input, select, textarea")) return;
  const [rows, columns] = ARROWS[event.key] ?? [0, 0];
  if (event.key.toLowerCase() === "p") play(playing === null);
  else if (!rows && !columns) return;
  else if (event.shiftKey) actions.move(rows, columns);
  else if (columns) actions.step(getState().step + columns);
  else actions.seed(getState().seed - rows);
  event.preventDefault();
}

function acceptDrops() {
  const highlight = (event, on) => {
    event.preventDefault();
    byId("drop").hidden = !on;
  };
  addEventListener("dragover", event => highlight(event, true));
  addEventListener("dragleave", event => { if (event.relatedTarget === null) highlight(event, false); });
  addEventListener("drop", event => {
    highlight(event, false);
    const [file] = event.dataTransfer.files;
    if (file) upload(file);
    else showError("Only files can be dropped here: a PNG, JPEG or WebP picture.");
  });
}

const megabytes = bytes => `${(bytes / 2 ** 20).toFixed(bytes % 2 ** 20 ? 1 : 0)} MB`;

async function upload(file) {
  const limit = session.limits.bytes;
  if (file.size > limit) {
    showError(`The file ${file.name} has ${megabytes(file.size)}; the limit is ${megabytes(limit)}.`);
    return;
  }
  try {
    const { picture } = await server.upload(file, () => setStatus("The app is busy; the upload is waiting."));
    hideError();
    actions.picture(picture);
    if (!fitsUrl(picture))
      showError("This picture is too large for the URL: a link to this page will not include it.");
  } catch (error) {
    showError(`Cannot use ${file.name}: ${error.message}`);
  }
}
