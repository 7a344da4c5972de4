// The whole path: a row for each model, a column for each noise level.

import { el, level, number, sigmaText, tile } from "./dom.js";
import { paintImage } from "./tiles.js";

export function pathView(root, session, actions) {
  const { shape } = session.data;
  const table = root.querySelector("table"), heading = root.querySelector("h2"), note = root.querySelector(".note");
  let built = "", rows = new Map(), heads = [];

  function build(scene) {
    const { steps } = scene.state, key = JSON.stringify([steps, scene.visible.map(model => model.id)]);
    if (key === built) return;
    built = key;
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
      ? `The whole path from seed ${state.seed}` : "Your picture at every noise level";
    note.textContent = "Predictions of the clean image from high noise to low, and their r² to "
      + `${scene.label(state.reference)}.`;
    heads.forEach((head, k) => head.classList.toggle("now", k === state.step));
    for (const [id, row] of rows)
      row.cells.forEach((cell, k) => renderCell(cell, scene.at(id, k), k, id, state, shape));
  }

  const figure = scene => ({
    title: heading.textContent, columns: scene.sigmas.map(sigma => sigmaText(sigma)),
    rows: scene.visible.map(model => ({ name: scene.title(model), cells: rows.get(model.id).cells.map(cell => ({
      tile: cell.tile, text: cell.text.textContent })) })),
  });

  const numbers = scene => ({
    sigmas: scene.sigmas,
    models: scene.visible.map(model => {
      const each = scene.sigmas.map((_, k) => scene.at(model.id, k)?.moment);
      return {
        ...scene.named(model), r2: each.map(moment => moment?.r2 ?? null), mse: each.map(moment => moment?.mse ?? null),
        error: scene.failure(model.id),
      };
    }),
  });
  return { render, figure, numbers };
}

function pathRow(model, steps, actions) {
  const cells = Array.from({ length: steps }, (_, k) => {
    const part = tile(`${model.label}, step ${k + 1}`, (canvas, event) => actions.pick(canvas, event, k));
    const text = el("small");
    return { tile: part, text, root: el("td", {}, part.box, text) };
  });
  const name = el("th", { scope: "row", className: "name", textContent: model.label });
  const root = el("tr", {}, name, ...cells.map(cell => cell.root));
  return { root, cells };
}

function renderCell(cell, found, step, id, state, shape) {
  const now = step === state.step, isReference = id === state.reference;
  cell.root.classList.toggle("now", now);
  cell.root.classList.toggle("stale", !found || found.stale);
  cell.tile.drawn = Boolean(found);
  cell.tile.box.classList.toggle("empty", !found);
  if (!found) return;
  paintImage(cell.tile.canvas, found.moment.x0_hat, shape);
  cell.tile.frame(now ? state.pixel : null);
  cell.text.textContent = isReference ? "" : number(found.moment.r2, 2);
  cell.tile.say(isReference ? "the reference" : `r² ${number(found.moment.r2)}`);
}
