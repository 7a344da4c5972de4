// The bar at the top, the keyboard, and pictures that are chosen or dropped.

import { byId, el, sigmaText } from "./dom.js";
import * as server from "./server.js";
import { fitsAddress } from "./state.js";
import { complain, forgive, say } from "./status.js";

const FRAME = 700; // milliseconds for each step of a play
const ARROWS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

let session, current, actions, playing = null;

export function listen(theSession, theState, theActions) {
  [session, current, actions] = [theSession, theState, theActions];
  byId("steps").append(...session.steps.map(steps => el("option", { value: steps, textContent: steps })));
  byId("reference").append(...session.models.map(({ id, label }) => el("option", { value: id, textContent: label })));
  byId("seed").onchange = event => actions.seed(+event.target.value);
  byId("seed-less").onclick = () => actions.seed(current().seed - 1);
  byId("seed-more").onclick = () => actions.seed(current().seed + 1);
  byId("step").oninput = event => actions.step(+event.target.value);
  byId("steps").onchange = event => actions.steps(+event.target.value);
  byId("reference").onchange = event => actions.reference(event.target.value);
  byId("play").onclick = () => play(playing === null);
  byId("cancel").onclick = stop;
  byId("from-noise").onclick = () => actions.picture(null);
  byId("from-picture").onclick = () => byId("file").click();
  byId("file").onchange = ({ target }) => {
    if (target.files.length) upload(target.files[0]);
    target.value = ""; // the same file may be chosen again
  };
  byId("error").lastElementChild.onclick = forgive;
  addEventListener("keydown", onKey);
  listenToDrops();
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
  playing = on ? setInterval(() => actions.step((current().step + 1) % current().steps), FRAME) : null;
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
  else if (columns) actions.step(current().step + columns);
  else actions.seed(current().seed - rows);
  event.preventDefault();
}

function listenToDrops() {
  const show = shown => { byId("drop").hidden = !shown; };
  addEventListener("dragover", event => {
    event.preventDefault();
    show(true);
  });
  addEventListener("dragleave", event => { if (event.relatedTarget === null) show(false); });
  addEventListener("drop", event => {
    event.preventDefault();
    show(false);
    const [file] = event.dataTransfer.files;
    if (file) upload(file);
    else complain("That is no file; drop a PNG, JPEG or WebP picture.");
  });
}

const megabytes = bytes => `${(bytes / 2 ** 20).toFixed(bytes % 2 ** 20 ? 1 : 0)} MB`;

async function upload(file) {
  const most = session.limits.bytes;
  if (file.size > most) {
    complain(`The file ${file.name} has ${megabytes(file.size)}; pictures of up to ${megabytes(most)} are taken.`);
    return;
  }
  try {
    const { picture } = await server.upload(file, () => say("The app is busy; the picture waits for its turn."));
    forgive();
    actions.picture(picture);
    if (!fitsAddress(picture))
      complain("This picture is too large for the address: a link to this page will not show it.");
  } catch (error) {
    complain(`The file ${file.name} is refused: ${error.message}`);
  }
}
