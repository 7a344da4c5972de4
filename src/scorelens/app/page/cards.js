// One step: a card for each model, with its prediction, how it differs, what it is near to, and its controls.

import { el, number, sigmaText, tile } from "./dom.js";
import { difference, paintImage, paintSigned, pixels } from "./tiles.js";

const NAMES = { threshold: "threshold", bandwidth: "bandwidth", patch_size: "patch size", softmax: "softmax" };
const NEAREST = 3;

export function cardsView(root, session, actions) {
  const { shape } = session.data;
  const cards = new Map(session.models.map(model => [model.id, card(model, actions)]));
  const chips = new Map(session.models.map(model => [model.id, chip(model, actions)]));
  const own = ownPicture(actions);
  root.querySelector(".cards").append(own.root, ...[...cards.values()].map(one => one.root));
  root.querySelector(".chips").append(...chips.values());
  const heading = root.querySelector("h2"), note = root.querySelector(".note");

  function render(scene) {
    const { state } = scene, from = state.picture === null;
    heading.textContent = `Step ${state.step + 1} of ${state.steps}, ${sigmaText(scene.sigma)}`;
    note.textContent = (from
      ? `Each model walks from the noise of seed ${state.seed} on its own path; this is what it predicts now. `
      : "Your picture with noise of this level, and what each model makes of it in one step. ")
      + `r² and difference (blue: darker, red: lighter) are to ${scene.label(state.reference)}. Click a pixel to see `
      + "where the models look.";
    renderPicture(own, state, shape);
    for (const model of session.models) {
      chips.get(model.id).setAttribute("aria-pressed", String(!state.hidden.includes(model.id)));
      const one = cards.get(model.id);
      one.root.hidden = state.hidden.includes(model.id);
      if (!one.root.hidden) renderCard(one, model, scene, shape);
    }
  }

  function figure(scene) {
    const shown = scene.visible.map(model => cards.get(model.id)), withOwn = scene.state.picture !== null;
    const row = (name, pick) => ({ name, cells: shown.map(pick) });
    return {
      title: heading.textContent, columns: scene.visible.map(model => scene.title(model)),
      rows: [
        ...withOwn ? [{ name: "your picture", cells: [{ tile: own.picture, text: "" }] }] : [],
        row("prediction", one => ({ tile: one.prediction, text: one.score.textContent })),
        row("input", one => ({ tile: one.input, text: "" })),
        row("difference", one => ({ tile: one.difference, text: "" })),
        ...Array.from({ length: NEAREST }, (_, k) => row(k ? "" : "nearest training images", ({ nearest }) => ({
          tile: nearest[k].tile, text: nearest[k].text.textContent }))),
      ],
    };
  }

  function numbers(scene) {
    return {
      sigma: scene.sigma,
      models: scene.visible.map(model => {
        const { moment } = scene.at(model.id) ?? {}, near = scene.nearest(model.id);
        return {
          ...scene.named(model),
          r2: moment?.r2 ?? null, mse: moment?.mse ?? null, picture_mse: moment?.picture_mse ?? null,
          z: moment && [...moment.z], x0_hat: moment && [...moment.x0_hat],
          nearest: near && { indices: near.indices, rms: near.rms }, error: scene.failure(model.id),
        };
      }),
    };
  }
  return { render, figure, numbers };
}

function chip(model, actions) {
  return el("button", { type: "button", textContent: model.label, onclick: () => actions.toggle(model.id) });
}

function ownPicture(actions) {
  const picture = tile("Your picture, as the models see it", (canvas, event) => actions.pick(canvas, event));
  const root = el("article", { className: "card own", hidden: true },
    el("h3", { textContent: "Your picture" }), picture.box,
    el("p", { className: "score" }, el("small", { textContent: "scaled and cropped as the training images are" })));
  return { root, picture };
}

function renderPicture(own, { picture, pixel }, shape) {
  own.root.hidden = picture === null;
  own.picture.drawn = picture !== null;
  if (picture === null) return;
  paintImage(own.picture.canvas, pixels(picture), shape);
  own.picture.frame(pixel);
}

function card(model, actions) {
  const pick = (canvas, event) => actions.pick(canvas, event);
  const prediction = tile(`Prediction of ${model.label}`, pick), input = tile(`Input of ${model.label}`, pick);
  const differs = tile(`Difference of ${model.label}`, pick);
  const score = el("p", { className: "score" }), error = el("p", { className: "failure", hidden: true });
  const nearest = Array.from({ length: NEAREST }, () => ({
    tile: tile(`Training image near to ${model.label}`), text: el("figcaption"),
  }));
  const near = el("div", { className: "three" }, ...nearest.map(one => el("figure", {}, one.tile.box, one.text)));
  const controls = model.controls.map(control => controlOf(model, control, actions));
  const figures = el("div", { className: "figures" }, prediction.box, score, el("div", { className: "two" },
    el("figure", {}, input.box, el("figcaption", { textContent: "input" })),
    el("figure", {}, differs.box, el("figcaption", { textContent: "difference" }))),
  el("h4", { textContent: "Nearest training images" }), near);
  const root = el("article", { className: "card", id: `card-${model.id}` },
    el("h3", { textContent: model.label, title: model.label }), error, figures,
    ...controls.length ? [el("div", { className: "options" }, ...controls.map(one => one.root))] : []);
  return { root, prediction, input, difference: differs, score, error, figures, nearest, controls };
}

function controlOf(model, control, actions) {
  const name = NAMES[control.name] ?? control.name, id = `${model.id}-${control.name}`;
  const set = value => actions.option(model.id, control.name, value);
  if (control.values.every(value => typeof value === "string")) {
    const buttons = control.values.map(value =>
      el("button", { type: "button", textContent: value, onclick: () => set(value) }));
    const root = el("div", {}, el("span", { className: "label", textContent: name }),
      el("div", { className: "together", role: "group", "aria-label": `${name} of ${model.label}` }, ...buttons));
    const show = value => buttons.forEach((button, k) =>
      button.setAttribute("aria-pressed", String(control.values[k] === value)));
    return { name: control.name, root, show };
  }
  const output = el("output", { for: id });
  const slider = el("input", { type: "range", id, min: 0, max: control.values.length - 1, step: 1,
    oninput: () => set(control.values[slider.value]), "aria-label": `${name} of ${model.label}` });
  const root = el("div", {}, el("label", { for: id }, `${name} `, output), slider);
  return { name: control.name, root, show(value) {
    slider.value = control.values.indexOf(value);
    const isPreset = control.name === "patch_size" && typeof value === "string";
    output.textContent = isPreset ? `preset ${value}` : String(value);
    slider.setAttribute("aria-valuetext", output.textContent);
  } };
}

function renderCard(one, model, scene, shape) {
  const { state } = scene, isReference = model.id === state.reference;
  const failure = scene.failure(model.id), found = scene.at(model.id), reference = scene.at(state.reference);
  for (const control of one.controls) control.show(state.options[model.id][control.name]);
  one.root.classList.toggle("reference", isReference);
  one.error.hidden = failure === null;
  one.error.textContent = failure ?? "";
  one.figures.hidden = failure !== null;
  one.figures.classList.toggle("stale", !found || found.stale);
  if (!found || failure !== null) return;
  const { moment } = found, spread = Math.hypot(1, moment.sigma); // of z: an image and its noise
  paintImage(one.prediction.canvas, moment.x0_hat, shape);
  paintImage(one.input.canvas, moment.z, shape, spread + moment.sigma); // black and white at 2 std, without noise at 1
  const score = isReference ? "reference" : `r² ${number(moment.r2)}`;
  const far = moment.picture_mse === null ? "" : `rms to the picture ${number(Math.sqrt(moment.picture_mse))}`;
  one.score.replaceChildren(el("strong", { textContent: score }), ...far ? [el("small", { textContent: far })] : []);
  one.score.dataset.r2 = moment.r2 ?? "";
  one.prediction.say(isReference ? "the reference" : score);
  if (reference) {
    paintSigned(one.difference.canvas, difference(moment.x0_hat, reference.moment.x0_hat, shape), shape, 1);
    one.difference.say(`to ${scene.label(state.reference)}`);
  }
  for (const part of [one.prediction, one.input, one.difference]) {
    part.drawn = true;
    part.frame(part === one.input ? null : state.pixel);
  }
  one.difference.box.parentElement.hidden = isReference;
  renderNearest(one, scene.nearest(model.id), shape);
}

function renderNearest(one, near, shape) {
  one.nearest.forEach(({ tile: part, text }, k) => {
    part.drawn = Boolean(near && k < near.indices.length);
    part.box.classList.toggle("empty", !part.drawn);
    if (!part.drawn) return;
    const index = near.indices[k], kind = near.classes[k];
    paintImage(part.canvas, near.images[k], shape);
    text.textContent = number(near.rms[k], 2);
    const what = `training image ${index}${kind === undefined ? "" : `, class ${kind}`}`;
    text.title = `${what}, rms distance ${number(near.rms[k])}`;
    part.say(text.title);
  });
}
