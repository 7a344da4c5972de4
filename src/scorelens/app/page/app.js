// The page: a state, the results computed for it, and three views of them.

import { cardsView } from "./cards.js";
import * as controls from "./controls.js";
import { byId, el } from "./dom.js";
import { fieldsView } from "./fields.js";
import { pathView } from "./path.js";
import * as results from "./results.js";
import { saveJson, savePng } from "./save.js";
import * as server from "./server.js";
import { fromHash, toHash } from "./state.js";
import { hideProgress, setStatus, showError, showProgress, showStage } from "./status.js";
import { onThemeChange, pixelAt } from "./tiles.js";

const DEBOUNCE = 30; // milliseconds without a change before a request is sent
const URL_DELAY = 150; // milliseconds between updates of the URL, which browsers limit in rate
const SLOW = 300; // milliseconds after which the progress bar appears
const MAX_SEED = 2 ** 32 - 1;

let session, state, views;
let running = null; // the AbortController of the current computation
let updateTimer = null, urlTimer = null, drawing = false;

async function init() {
  try {
    session = await server.session();
  } catch (error) {
    showError(error.message);
    return;
  }
  const { data } = session, [channels, height, width] = data.shape;
  results.setShape(data.shape);
  document.title = `Scorelens: ${data.name}`;
  byId("about").textContent = `${data.name}: ${data.count.toLocaleString("en")} training images, ${height} × ${width}`
    + `${channels === 1 ? "" : `, ${channels} channels`}${data.guidance && `; ${data.guidance}`}. How much of a diffusion model do their statistics explain?`;
  views = {
    step: cardsView(byId("step-view"), session, actions),
    fields: fieldsView(byId("fields-view"), session, actions),
    path: pathView(byId("path-view"), session, actions),
  };
  for (const [name, view] of Object.entries(views)) addSaveButtons(name, view);
  controls.init(session, () => state, actions);
  addEventListener("hashchange", readUrl);
  onThemeChange(draw);
  readUrl();
}

function readUrl() {
  const { state: read, invalid } = fromHash(location.hash, session);
  if (invalid.length) showError(`Ignored settings in this URL that are not valid here: ${invalid.join(", ")}.`);
  change(read);
}

const clamp = (k, count) => Math.max(0, Math.min(count - 1, k));

// Everything that changes the state.
const actions = {
  seed: seed => change({ seed: clamp(Math.round(seed) || 0, MAX_SEED + 1) }),
  step: step => change({ step: clamp(step, state.steps) }),
  steps: steps => change({ steps, step: Math.round(state.step / (state.steps - 1) * (steps - 1)) }),
  reference: reference => change({ reference }),
  picture: picture => change({ picture }),
  pick: (canvas, event, step = state.step) => change({ pixel: pixelAt(canvas, event), step }),
  option(id, name, value) {
    change({ options: { ...state.options, [id]: { ...state.options[id], [name]: value } } });
  },
  toggle(id) {
    const others = state.hidden.filter(other => other !== id);
    change({ hidden: others.length < state.hidden.length ? others : [...others, id] });
  },
  move(rows, columns) {
    const [, height, width] = session.data.shape, [row, column] = state.pixel;
    change({ pixel: [clamp(row + rows, height), clamp(column + columns, width)] });
  },
  cancel() {
    clearTimeout(updateTimer);
    if (!running) return;
    running.abort();
    setStatus("Cancelled. The results so far are shown.");
  },
};

function change(changes) {
  state = { ...state, ...changes };
  urlTimer ??= setTimeout(writeUrl, URL_DELAY);
  draw();
  clearTimeout(updateTimer);
  updateTimer = setTimeout(update, DEBOUNCE);
}

function writeUrl() {
  urlTimer = null;
  history.replaceState(null, "", location.pathname + location.search + toHash(state));
}

// Compute what is missing for the current state; abort the computation for an earlier one.
async function update() {
  running?.abort();
  const controller = running = new AbortController(), requested = state, began = performance.now();
  const slow = setTimeout(showProgress, SLOW);
  document.body.dataset.busy = "true";
  try {
    const computed = await computeTrajectories(requested, controller.signal)
      + await computeFields(requested, controller.signal);
    const seconds = (performance.now() - began) / 1000;
    document.body.dataset.seconds = seconds.toFixed(3);
    if (computed) setStatus(`Computed in ${seconds.toFixed(2)} s`);
  } catch (error) {
    if (error.name !== "AbortError") showError(error.message);
  } finally {
    clearTimeout(slow);
    if (running === controller) finish();
  }
}

function finish() {
  running = null;
  hideProgress();
  draw();
  requestAnimationFrame(() => {  // after the results are drawn
    if (!running) document.body.dataset.busy = "false";
  });
}

async function computeTrajectories(state, signal) {
  const { reference } = state, isMissing = id => !results.hasTrajectory(state, id);
  const missing = [...new Set([reference, ...visibleIn(state).map(model => model.id)])].filter(isMissing);
  if (!missing.length) return 0;
  const order = [reference, ...missing.filter(id => id !== reference)];
  await receive("trajectory", makeQuery(state, missing), signal, order, message => results.addToTrajectory(state, message));
  return checkComplete(missing, isMissing);
}

async function computeFields(state, signal) {
  const isMissing = id => !results.hasField(state, id);
  const missing = visibleIn(state).filter(model => !model.is_row).map(model => model.id).filter(isMissing);
  if (!missing.length && !isMissing(null)) return 0;
  const { step, pixel } = state;
  await receive("fields", { ...makeQuery(state, missing), step, pixel }, signal, missing,
    message => results.addField(state, message));
  return checkComplete([null, ...missing], isMissing);
}

function checkComplete(ids, isMissing) {
  if (ids.some(isMissing)) throw new Error("The app stopped before the computation was complete.");
  return ids.length;
}

const makeQuery = (state, ids) => ({
  models: ids.map(id => results.choice(state, id)), reference: results.choice(state, state.reference),
  ...results.start(state),
});

async function receive(path, query, signal, order, onMessage) {
  const onBusy = () => setStatus("The app is busy; this page is waiting.");
  for await (const message of server.stream(path, query, signal, onBusy)) {
    if (message.kind === "stage") showStage(message, order, session);
    else if (message.kind === "failure" && message.model === null) throw new Error(message.error);
    else {
      onMessage(message);
      draw();
    }
  }
}

const visibleIn = ({ hidden }) => session.models.filter(model => !hidden.includes(model.id));

// The data that the views draw.
function getScene() {
  const sigmas = session.sigmas[state.steps];
  const named = ({ id, label }) => ({ model: id ?? "wiener-row", label, options: state.options[id] ?? {} });
  return {
    state, sigmas, sigma: sigmas[state.step], visible: visibleIn(state), named,
    label: id => session.models.find(model => model.id === id).label,
    title: model => [model.label, ...Object.values(named(model).options)].join(", "),
    at: (id, step = state.step) => results.predictionOf(state, id, step),
    nearest: id => results.nearestOf(state, id),
    failure: id => results.failureOf(state, id),
    field: id => results.fieldOf(state, id),
    fieldFailure: id => results.fieldFailureOf(state, id),
  };
}

function draw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    const scene = getScene();
    for (const view of [controls, ...Object.values(views)]) view.render(scene);
  });
}

function addSaveButtons(name, view) {
  const file = () => `scorelens-${session.data.name.replace(/[^\w-]+/g, "-")}-${name}-seed${state.seed}`;
  const settings = () => ({
    scorelens: session.version, view: name, address: location.origin + location.pathname + toHash(state),
    data: session.data, ...results.start(state), reference: state.reference,
  });
  const png = () => savePng(view.figure(getScene()), file());
  const json = () => saveJson({ ...settings(), ...view.numbers(getScene()) }, file());
  byId(`${name}-view`).querySelector(".saves").append(
    el("button", { type: "button", textContent: "Save PNG", onclick: png }),
    el("button", { type: "button", textContent: "Save JSON", onclick: json }));
}

init();
