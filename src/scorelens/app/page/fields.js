// Where each model looks: fields of one output pixel, the row of the Wiener matrix first.

import { el, number, short, sigmaText, tile } from "./dom.js";
import { largest, paintSigned } from "./tiles.js";

export function fieldsView(root, session, actions) {
  const { shape } = session.data;
  const list = root.querySelector(".fields"), heading = root.querySelector("h2"), note = root.querySelector(".note");
  const wiener = { id: null, label: "Wiener filter" };
  const figures = new Map([wiener, ...session.models].map(model => [model.id, fieldFigure(model, actions)]));
  list.append(...[...figures.values()].map(one => one.root));

  const shown = scene => [wiener, ...scene.visible.filter(model => !model.is_row)];

  function render(scene) {
    const [row, column] = scene.state.pixel, names = new Set(shown(scene).map(model => model.id));
    heading.textContent = `Where each model looks for pixel (${row}, ${column}) at ${sigmaText(scene.sigma)}`;
    note.textContent = "The derivative of this output pixel with respect to every input pixel, at the reference's "
      + "noisy image: red raises it, blue lowers it, each field to its own largest value. The cosine is to the "
      + "Wiener filter's row.";
    for (const [id, one] of figures) {
      one.root.hidden = !names.has(id);
      if (!one.root.hidden) renderField(one, scene, id, shape);
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
  const part = tile(`Field of ${model.label}`, (canvas, event) => actions.pick(canvas, event));
  const text = el("small"), size = el("small"), error = el("p", { className: "failure", hidden: true });
  const root = el("figure", { className: model.id === null ? "field first" : "field" },
    part.box, error, el("figcaption", {}, el("strong", { textContent: model.label }), text, size));
  if (model.id !== null) root.dataset.model = model.id;
  return { root, tile: part, text, size, error };
}

function renderField(one, scene, id, shape) {
  const found = scene.field(id), failure = scene.fieldFailure(id);
  one.error.hidden = failure === null;
  one.error.textContent = failure ?? "";
  one.root.classList.toggle("stale", !failure && (!found || found.stale));
  one.tile.box.classList.toggle("empty", !found || failure !== null);
  one.tile.drawn = Boolean(found);
  if (!found) return;
  const { field } = found, top = largest(field.values);
  paintSigned(one.tile.canvas, field.values, shape, top);
  one.tile.frame(scene.state.pixel);
  one.text.textContent = id === null ? "the row of its matrix" : `cosine ${number(field.cosine, 2)}`;
  one.size.textContent = `largest ${short(top)}`;
  one.tile.say(`${one.text.textContent}, ${one.size.textContent}, radius ${number(field.radius, 1)} pixels`);
}
