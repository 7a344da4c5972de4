// Whole trajectories: one row per model, one column per noise level.

import { el, level, number, sigmaText, tile } from "./dom.js";
import { paintImage } from "./tiles.js";

export function pathView(root, session, actions) {
  const { shape } = session.data;
  const table = root.querySelector("table"), heading = root.querySelector("h2"), note = root.querySelector(".note");
  let builtFor = "", rows = new Map(), heads = [];

  function build(scene) {
    const { steps } = scene.state, key = JSON.stringify([steps, scene.visible.map(model => model.id)]);
    if (key === builtFor) return;
    builtFor = key;
    heads = scene.sigmas.map((sigma, k) => el("th", { scope: "col" }, el("button", {
      type: "button", textContent: level(sigma), onclick: () => actions.step(k),
      "aria-label": `Noise level ${level(sigma)}` })));
    rows = new Map(scene.visible.map(model => [model.id, pathRow(model, steps, actions)]));
    const corner = el("th", { scope: "col", className: "name", textContent: "σ" });
    table.replaceChildren(el("thead", {}, el("tr", {}, corner, ...heads)),
      el("tbody", {}, ...[...rows.values()].map(row => row.root)));
  }

  function render(scene) {
    build(scene);
    const { state } = scene;
    heading.textContent = state.picture === null
      ? `Trajectories from seed ${state.seed}` : "Your picture at every noise level";
    note.textContent = "Predictions of the clean image, from high noise to low, and their r² against "
      + `${scene.label(state.reference)}.`;
    heads.forEach((head, k) => head.classList.toggle("now", k === state.step));
    for (const [id, row] of rows)
      row.cells.forEach((cell, k) => renderCell(cell, scene.at(id, k), k, id, state, shape));
  }

  const figure = scene => ({
    title: heading.textContent, columns: scene.sigmas.map(sigmaText),
    rows: scene.visible.map(model => ({ name: scene.title(model), cells: rows.get(model.id).cells.map(cell => ({
      tile: cell.tile, text: cell.text.textContent })) })),
  });

  const numbers = scene => ({
    sigmas: scene.sigmas,
    models: scene.visible.map(model => {
      const predictions = scene.sigmas.map((_, k) => scene.at(model.id, k)?.prediction);
      return { ...scene.named(model), r2: predictions.map(prediction => prediction?.r2 ?? null),
        mse: predictions.map(prediction => prediction?.mse ?? null), error: scene.failure(model.id) };
    }),
  });
  return { render, figure, numbers };
}

function pathRow(model, steps, actions) {
  const cells = Array.from({ length: steps }, (_, k) => {
    const prediction = tile(`${model.label}, step ${k + 1}`, (canvas, event) => actions.pick(canvas, event, k));
    const text = el("small");
    return { tile: prediction, text, root: el("td", {}, prediction.box, text) };
  });
  const name = el("th", { scope: "row", className: "name", textContent: model.label });
  return { cells, root: el("tr", {}, name, ...cells.map(cell => cell.root)) };
}

function renderCell(cell, result, step, id, state, shape) {
  const now = step === state.step, isReference = id === state.reference;
  cell.root.classList.toggle("now", now);
  cell.root.classList.toggle("stale", !result || result.stale);
  cell.tile.drawn = Boolean(result);
  cell.tile.box.classList.toggle("empty", !result);
  if (!result) return;
  paintImage(cell.tile.canvas, result.prediction.x0_hat, shape);
  cell.tile.frame(now ? state.pixel : null);
  cell.text.textContent = isReference ? "" : number(result.prediction.r2, 2);
  cell.tile.describe(isReference ? "the reference" : `r² ${number(result.prediction.r2)}`);
}
