// One step: a card per model with its prediction, input, difference, nearest training images and controls.

import { el, number, sigmaText, tile } from "./dom.js";
import { difference, paintImage, paintSigned, pixels } from "./tiles.js";

const NEAREST = 3;

export function cardsView(root, session, actions) {
  const { shape } = session.data;
  const cards = new Map(session.models.map(model => [model.id, modelCard(model, actions)]));
  const chips = new Map(session.models.map(({ id, label }) => [id,
    el("button", { type: "button", textContent: label, onclick: () => actions.toggle(id) })]));
  const own = pictureCard(actions);
  root.querySelector(".cards").append(own.root, ...[...cards.values()].map(card => card.root));
  root.querySelector(".chips").append(...chips.values());
  const heading = root.querySelector("h2"), note = root.querySelector(".note");

  function render(scene) {
    const { state } = scene;
    heading.textContent = `Step ${state.step + 1} of ${state.steps}, ${sigmaText(scene.sigma)}`;
    note.textContent = (state.picture === null
      ? `Each model follows its own trajectory from the noise of seed ${state.seed}; this is its prediction at this step. `
      : "Your picture with noise of this level, and each model's prediction of the clean image in one step. ")
      + `r² and difference (blue: darker, red: lighter) are relative to ${scene.label(state.reference)}. Click a `
      + "pixel to see its sensitivity fields.";
    renderPicture(own, state, shape);
    for (const model of session.models) {
      const card = cards.get(model.id), hidden = state.hidden.includes(model.id);
      chips.get(model.id).setAttribute("aria-pressed", String(!hidden));
      card.root.hidden = hidden;
      if (!hidden) renderCard(card, model, scene, shape);
    }
  }

  function figure(scene) {
    const shown = scene.visible.map(model => cards.get(model.id));
    const row = (name, cell) => ({ name, cells: shown.map(cell) });
    return {
      title: heading.textContent, columns: scene.visible.map(model => scene.title(model)),
      rows: [
        ...scene.state.picture === null ? [] : [{ name: "your picture", cells: [{ tile: own.picture, text: "" }] }],
        row("prediction", card => ({ tile: card.prediction, text: card.score.textContent })),
        row("input", card => ({ tile: card.input, text: "" })),
        row("difference", card => ({ tile: card.difference, text: "" })),
        ...Array.from({ length: NEAREST }, (_, k) => row(k ? "" : "nearest training images", ({ nearest }) => ({
          tile: nearest[k].tile, text: nearest[k].text.textContent }))),
      ],
    };
  }

  const numbers = scene => ({
    sigma: scene.sigma,
    models: scene.visible.map(model => {
      const { prediction } = scene.at(model.id) ?? {}, nearest = scene.nearest(model.id);
      return {
        ...scene.named(model),
        r2: prediction?.r2 ?? null, mse: prediction?.mse ?? null, picture_mse: prediction?.picture_mse ?? null,
        z: prediction && [...prediction.z], x0_hat: prediction && [...prediction.x0_hat],
        nearest: nearest && { indices: nearest.indices, rms: nearest.rms }, error: scene.failure(model.id),
      };
    }),
  });
  return { render, figure, numbers };
}

function pictureCard(actions) {
  const picture = tile("Your picture, as the models see it", actions.pick);
  const root = el("article", { className: "card own", hidden: true },
    el("h3", { textContent: "Your picture" }), picture.box,
    el("p", { className: "score" }, el("small", { textContent: "scaled and cropped like the training images" })));
  return { root, picture };
}

function renderPicture(own, { picture, pixel }, shape) {
  own.root.hidden = picture === null;
  own.picture.drawn = picture !== null;
  if (picture === null) return;
  paintImage(own.picture.canvas, pixels(picture), shape);
  own.picture.frame(pixel);
}

function modelCard(model, actions) {
  const [prediction, input, difference] = ["Prediction", "Input", "Difference"].map(name =>
    tile(`${name} of ${model.label}`, actions.pick));
  const score = el("p", { className: "score" }), error = el("p", { className: "failure", hidden: true });
  const nearest = Array.from({ length: NEAREST }, () => ({
    tile: tile(`Training image near ${model.label}`), text: el("figcaption"),
  }));
  const controls = model.controls.map(control => controlOf(model, control, actions));
  const figures = el("div", { className: "figures" }, prediction.box, score, el("div", { className: "two" },
    el("figure", {}, input.box, el("figcaption", { textContent: "input" })),
    el("figure", {}, difference.box, el("figcaption", { textContent: "difference" }))),
  el("h4", { textContent: "Nearest training images" }),
  el("div", { className: "three" }, ...nearest.map(({ tile, text }) => el("figure", {}, tile.box, text))));
  const root = el("article", { className: "card", id: `card-${model.id}` },
    el("h3", { textContent: model.label, title: model.label }), error, figures,
    ...controls.length ? [el("div", { className: "options" }, ...controls.map(control => control.root))] : []);
  return { root, prediction, input, difference, score, error, figures, nearest, controls };
}

function controlOf(model, control, actions) {
  const name = control.name.replaceAll("_", " "), onSet = value => actions.option(model.id, control.name, value);
  const parts = { label: `${name} of ${model.label}`, name, onSet, id: `${model.id}-${control.name}` };
  const isChoice = control.values.every(value => typeof value === "string");
  return { name: control.name, ...isChoice ? buttons(control, parts) : slider(control, parts) };
}

function buttons({ values }, { label, name, onSet }) {
  const each = values.map(value => el("button", { type: "button", textContent: value, onclick: () => onSet(value) }));
  const root = el("div", {}, el("span", { className: "label", textContent: name }),
    el("div", { className: "together", role: "group", "aria-label": label }, ...each));
  const show = value => each.forEach((button, k) => button.setAttribute("aria-pressed", String(values[k] === value)));
  return { root, show };
}

function slider(control, { label, name, onSet, id }) {
  const { values } = control, output = el("output", { for: id });
  const input = el("input", { type: "range", id, min: 0, max: values.length - 1, step: 1,
    oninput: () => onSet(values[input.value]), "aria-label": label });
  const show = value => {
    input.value = values.indexOf(value);
    const isPreset = control.name === "patch_size" && typeof value === "string";
    output.textContent = isPreset ? `preset ${value}` : String(value);
    input.setAttribute("aria-valuetext", output.textContent);
  };
  return { root: el("div", {}, el("label", { for: id }, `${name} `, output), input), show };
}

function renderCard(card, model, scene, shape) {
  const { state } = scene, isReference = model.id === state.reference;
  const failure = scene.failure(model.id), result = scene.at(model.id), reference = scene.at(state.reference);
  for (const control of card.controls) control.show(state.options[model.id][control.name]);
  card.root.classList.toggle("reference", isReference);
  card.error.hidden = failure === null;
  card.error.textContent = failure ?? "";
  card.figures.hidden = failure !== null;
  card.figures.classList.toggle("stale", !result || result.stale);
  if (!result || failure !== null) return;
  const { prediction } = result, std = Math.hypot(1, prediction.sigma); // of z
  paintImage(card.prediction.canvas, prediction.x0_hat, shape);
  paintImage(card.input.canvas, prediction.z, shape, std + prediction.sigma); // limit: 1 without noise, 2 std with much
  const score = isReference ? "reference" : `r² ${number(prediction.r2)}`;
  const rms = prediction.picture_mse === null ? [] : [`rms to the picture ${number(Math.sqrt(prediction.picture_mse))}`];
  card.score.replaceChildren(el("strong", { textContent: score }),
    ...rms.map(textContent => el("small", { textContent })));
  card.score.dataset.r2 = prediction.r2 ?? "";
  card.prediction.describe(isReference ? "the reference" : score);
  if (reference) {
    paintSigned(card.difference.canvas, difference(prediction.x0_hat, reference.prediction.x0_hat, shape), shape, 1);
    card.difference.describe(`from ${scene.label(state.reference)}`);
  }
  for (const part of [card.prediction, card.input, card.difference]) {
    part.drawn = true;
    part.frame(part === card.input ? null : state.pixel);
  }
  card.difference.box.parentElement.hidden = isReference;
  renderNearest(card, scene.nearest(model.id), shape);
}

function renderNearest(card, nearest, shape) {
  card.nearest.forEach(({ tile, text }, k) => {
    tile.drawn = Boolean(nearest && k < nearest.indices.length);
    tile.box.classList.toggle("empty", !tile.drawn);
    if (!tile.drawn) return;
    const label = nearest.classes[k] === undefined ? "" : `, class ${nearest.classes[k]}`;
    paintImage(tile.canvas, nearest.images[k], shape);
    text.textContent = number(nearest.rms[k], 2);
    text.title = `training image ${nearest.indices[k]}${label}, rms distance ${number(nearest.rms[k])}`;
    tile.describe(text.title);
  });
}
