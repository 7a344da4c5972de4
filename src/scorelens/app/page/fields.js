// Sensitivity fields of one output pixel, starting with the row of the Wiener matrix.

import { el, number, short, sigmaText, tile } from "./dom.js";
import { maxAbs, paintSigned } from "./tiles.js";

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
      + "of the Wiener matrix.";
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
        values: field && [...field.values], error: scene.fieldFailure(model.id) };
    }),
  });
  return { render, figure, numbers };
}

function fieldFigure(model, actions) {
  const field = tile(`Field of ${model.label}`, actions.pick);
  const text = el("small"), size = el("small"), error = el("p", { className: "failure", hidden: true });
  const root = el("figure", { className: model.id === null ? "field first" : "field" },
    field.box, error, el("figcaption", {}, el("strong", { textContent: model.label }), text, size));
  if (model.id !== null) root.dataset.model = model.id;
  return { root, tile: field, text, size, error };
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
  figure.tile.describe(
    `${figure.text.textContent}, ${figure.size.textContent}, radius ${number(field.radius, 1)} pixels`);
}
