// Sensitivity fields of one output pixel, starting with the row of the Wiener matrix.

import { el, number, short, sigmaText, tile } from "./dom.js";
import { maxAbs, paintImage, paintSigned } from "./tiles.js";

const BEHIND = 4; // training images for each field

export function fieldsView(root, session, actions) {
  const { shape } = session.data;
  const list = root.querySelector(".fields"), heading = root.querySelector("h2"), note = root.querySelector(".note");
  const wiener = { id: null, label: "Wiener filter" };
  const figures = new Map([wiener, ...session.models].map(model => [model.id, fieldFigure(model, actions)]));
  list.append(...[...figures.values()].map(({ root }) => root));

  const shown = scene => [wiener, ...scene.visible.filter(model => !model.is_row)];

  function render(scene) {
    const [row, column] = scene.state.pixel, ids = new Set(shown(scene).map(model => model.id));
    heading.textContent = `Sensitivity of output pixel (${row}, ${column}) at ${sigmaText(scene.sigma)}`;
    note.textContent = "Derivative of this output pixel with respect to each input pixel, at the reference's noisy "
      + "image. Red is positive, blue negative; each field is scaled to its largest value. Cosines are with the row "
      + "of the Wiener matrix. Below: the training images with the most weight behind this pixel, bright where they "
      + "are compared with the noisy image.";
    for (const [id, figure] of figures) {
      figure.root.hidden = !ids.has(id);
      if (ids.has(id)) renderField(figure, scene, id, shape);
    }
  }

  const figure = scene => ({
    title: heading.textContent, columns: shown(scene).map(model => scene.title(model)),
    rows: [{ name: "", cells: shown(scene).map(model => ({
      tile: figures.get(model.id).tile, text: figures.get(model.id).text.textContent })) }],
  });

  const numbers = scene => ({
    sigma: scene.sigma, pixel: scene.state.pixel,
    fields: shown(scene).map(model => {
      const { field } = scene.field(model.id) ?? {};
      return { ...scene.named(model), cosine: field?.cosine ?? null, radius: field?.radius ?? null,
        behind: field?.behind?.images.map(({ index, weight }) => ({ index, weight })) ?? null,
        effective_number: field?.behind?.effective ?? null,
        values: field && [...field.values], error: scene.fieldFailure(model.id) };
    }),
  });
  return { render, figure, numbers };
}

function fieldFigure(model, actions) {
  const field = tile(`Field of ${model.label}`, actions.pick);
  const text = el("small"), size = el("small"), error = el("p", { className: "failure", hidden: true });
  const behind = Array.from({ length: BEHIND }, () => ({
    tile: tile(`Training image behind this pixel of ${model.label}`), text: el("figcaption") }));
  const sources = el("div", { className: "behind", hidden: true },
    ...behind.map(({ tile, text }) => el("figure", {}, tile.box, text)));
  const root = el("figure", { className: model.id === null ? "field first" : "field" },
    field.box, error, el("figcaption", {}, el("strong", { textContent: model.label }), text, size), sources);
  if (model.id !== null) root.dataset.model = model.id;
  return { root, tile: field, text, size, error, behind, sources };
}

function renderField(figure, scene, id, shape) {
  const result = scene.field(id), failure = scene.fieldFailure(id);
  figure.error.hidden = failure === null;
  figure.error.textContent = failure ?? "";
  figure.root.classList.toggle("stale", !failure && (!result || result.stale));
  figure.tile.box.classList.toggle("empty", !result || failure !== null);
  figure.tile.drawn = Boolean(result);
  if (!result) return;
  const { field } = result, max = maxAbs(field.values);
  paintSigned(figure.tile.canvas, field.values, shape, max);
  figure.tile.frame(scene.state.pixel);
  figure.text.textContent = id === null ? "row of the Wiener matrix" : `cosine ${number(field.cosine, 2)}`;
  figure.size.textContent = `largest ${short(max)}`;
  renderBehind(figure, field.behind, scene.state.pixel, shape);
  figure.tile.describe(
    `${figure.text.textContent}, ${figure.size.textContent}, radius ${number(field.radius, 1)} pixels`);
}

// Training images in the order of their weights; pixels outside the mask are dimmed.
function renderBehind(figure, behind, pixel, shape) {
  figure.sources.hidden = !behind;
  if (!behind) return;
  figure.sources.title = `effective number of images ${number(behind.effective, 1)}`;
  figure.behind.forEach(({ tile, text }, k) => {
    const image = behind.images[k];
    tile.drawn = Boolean(image);
    tile.box.classList.toggle("empty", !image);
    if (!image) return;
    const area = shape[1] * shape[2], seen = i => behind.mask === null || behind.mask[i % area] > 0;
    paintImage(tile.canvas, image.pixels.map((value, i) => seen(i) ? value : 0.3 * value - 0.1), shape);
    tile.frame(pixel);
    text.textContent = `${(100 * image.weight).toFixed(image.weight < 0.1 ? 1 : 0)} %`;
    text.title = `training image ${image.index}${image.label === undefined ? "" : `, class ${image.label}`}, weight ${text.textContent}`;
    tile.describe(text.title);
  });
}
