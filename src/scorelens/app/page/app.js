// The page: a state, what is computed for it, and three views of that.

import { cardsView } from "./cards.js";
import * as controls from "./controls.js";
import { byId, el } from "./dom.js";
import { fieldsView } from "./fields.js";
import { pathView } from "./path.js";
import * as results from "./results.js";
import { saveJson, savePng } from "./save.js";
import * as server from "./server.js";
import { fromAddress, toAddress } from "./state.js";
import { complain, finishProgress, say, showProgress, showStage } from "./status.js";
import { pixelAt, whenThemeChanges } from "./tiles.js";

const PAUSE = 30; // milliseconds without a change before anything is asked
const WRITE = 150; // milliseconds between writes of the address: browsers refuse to write it too often
const SLOW = 300; // milliseconds after which a computation shows its progress
const LAST_SEED = 2 ** 32 - 1;

let session, state, views;
let running = null; // what aborts the computation under way
let waiting = null, writing = null, drawing = false;

async function begin() {
  try {
    session = await server.session();
  } catch (error) {
    complain(error.message);
    return;
  }
  const { data } = session, [channels, height, width] = data.shape;
  results.fit(data.shape);
  document.title = `Scorelens: ${data.name}`;
  byId("about").textContent = `${data.name}: ${data.count.toLocaleString("en")} training images, ${height} × ${width}`
    + `${channels === 1 ? "" : `, ${channels} channels`}. How much of a diffusion model do their statistics explain?`;
  views = {
    step: cardsView(byId("step-view"), session, actions),
    fields: fieldsView(byId("fields-view"), session, actions),
    path: pathView(byId("path-view"), session, actions),
  };
  for (const [name, view] of Object.entries(views)) offerSaves(name, view);
  controls.listen(session, () => state, actions);
  addEventListener("hashchange", readAddress);
  whenThemeChanges(draw);
  readAddress();
}

function readAddress() {
  const read = fromAddress(location.hash, session);
  state = read.state;
  if (read.misfits.length)
    complain(`Some of this address does not fit what is shown here: ${read.misfits.join(", ")}.`);
  changed();
}

const within = (k, count) => Math.max(0, Math.min(count - 1, k));

// Everything that can be done to the state.
const actions = {
  seed: seed => change({ seed: within(Math.round(seed) || 0, LAST_SEED + 1) }),
  step: step => change({ step: within(step, state.steps) }),
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
    change({ pixel: [within(row + rows, height), within(column + columns, width)] });
  },
  cancel() {
    clearTimeout(waiting);
    if (!running) return;
    running.abort();
    say("Cancelled. What was computed so far is shown.");
  },
};

function change(news) {
  state = { ...state, ...news };
  changed();
}

function changed() {
  writing ??= setTimeout(writeAddress, WRITE);
  draw();
  clearTimeout(waiting);
  waiting = setTimeout(update, PAUSE);
}

function writeAddress() {
  writing = null;
  history.replaceState(null, "", location.pathname + location.search + toAddress(state));
}

// Ask for what is missing; whatever was being computed for an earlier state is given up.
async function update() {
  running?.abort();
  const mine = running = new AbortController(), asked = state, began = performance.now();
  const slow = setTimeout(showProgress, SLOW);
  document.body.dataset.busy = "true";
  try {
    const computed = await walk(asked, mine.signal) + await look(asked, mine.signal);
    const seconds = (performance.now() - began) / 1000;
    document.body.dataset.seconds = seconds.toFixed(3);
    if (computed) say(`Computed in ${seconds.toFixed(2)} s`);
  } catch (error) {
    if (error.name !== "AbortError") complain(error.message);
  } finally {
    clearTimeout(slow);
    if (running === mine) finish();
  }
}

function finish() {
  running = null;
  finishProgress();
  document.body.dataset.busy = "false";
  draw();
}

async function walk(asked, signal) {
  const wanted = new Set([asked.reference, ...visible(asked).map(model => model.id)]);
  const missing = [...wanted].filter(id => !results.hasWalk(asked, id));
  if (!missing.length) return 0;
  const order = [asked.reference, ...missing.filter(id => id !== asked.reference)];
  await listenTo("walk", questionOf(asked, missing), signal, order, message => results.takeWalk(asked, message));
  return counted(missing, id => results.hasWalk(asked, id));
}

async function look(asked, signal) {
  const wanted = visible(asked).filter(model => !model.is_row).map(model => model.id);
  const missing = wanted.filter(id => !results.hasField(asked, id));
  if (!missing.length && results.hasField(asked, null)) return 0;
  const question = { ...questionOf(asked, missing), step: asked.step, pixel: asked.pixel };
  await listenTo("fields", question, signal, missing, message => results.takeField(asked, message));
  return counted([null, ...missing], id => results.hasField(asked, id));
}

function counted(asked, isThere) {
  if (!asked.every(isThere)) throw new Error("The app stopped before it was done.");
  return asked.length;
}

const questionOf = (asked, ids) => ({
  models: ids.map(id => results.pick(asked, id)), reference: results.pick(asked, asked.reference),
  ...results.start(asked),
});

async function listenTo(path, question, signal, order, take) {
  const wait = () => say("The app is busy; this page waits for its turn.");
  for await (const message of server.stream(path, question, signal, wait)) {
    if (message.kind === "stage") showStage(message, order, session);
    else if (message.kind === "failure" && message.model === null) throw new Error(message.error);
    else {
      take(message);
      draw();
    }
  }
}

const visible = ({ hidden }) => session.models.filter(model => !hidden.includes(model.id));

// What the views need to know.
function sceneOf(state) {
  const sigmas = session.sigmas[state.steps];
  const named = ({ id, label }) => ({ model: id ?? "wiener-row", label, options: state.options[id] ?? {} });
  return {
    state, sigmas, sigma: sigmas[state.step], visible: visible(state), named,
    label: id => session.models.find(model => model.id === id).label,
    title: model => [model.label, ...Object.values(named(model).options)].join(", "),
    at: (id, step = state.step) => results.momentOf(state, id, step),
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
    const scene = sceneOf(state);
    controls.render(scene);
    for (const view of Object.values(views)) view.render(scene);
  });
}

function offerSaves(name, view) {
  const file = () => `scorelens-${session.data.name.replace(/[^\w-]+/g, "-")}-${name}-seed${state.seed}`;
  const about = () => ({
    scorelens: session.version, view: name, address: location.origin + location.pathname + toAddress(state),
    data: session.data, ...results.start(state), reference: state.reference,
  });
  const png = () => savePng(view.figure(sceneOf(state)), file());
  const json = () => saveJson({ ...about(), ...view.numbers(sceneOf(state)) }, file());
  byId(`${name}-view`).querySelector(".saves").append(
    el("button", { type: "button", textContent: "Save PNG", onclick: png }),
    el("button", { type: "button", textContent: "Save JSON", onclick: json }));
}

begin();
