// The state of the page, and its form in the URL.

const MAX_PICTURE = 100_000; // characters; a longer picture is left out of the URL

const defaultStep = steps => Math.round(0.7 * (steps - 1));

function initialState(session) {
  const [, height, width] = session.data.shape;
  const initial = controls => Object.fromEntries(controls.map(({ name, value }) => [name, value]));
  const steps = session.steps.includes(10) ? 10 : session.steps[0];
  return {
    seed: 0, steps, step: defaultStep(steps), pixel: [height >> 1, width >> 1], reference: session.models[0].id,
    hidden: [], options: Object.fromEntries(session.models.map(({ id, controls }) => [id, initial(controls)])),
    picture: null,
  };
}

// The state in a URL's hash, and its settings that are invalid in this session.
export function fromHash(hash, session) {
  const state = initialState(session), invalid = [];
  const params = new URLSearchParams(hash.replace(/^#/, "")), known = new Set();
  const read = (name, parse, target = state, key = name) => {
    const text = params.get(name);
    known.add(name);
    if (text === null) return;
    const value = parse(text);
    if (value === undefined) invalid.push(`${name}=${text.slice(0, 40)}`);
    else target[key] = value;
  };
  const integer = (text, min, max) => /^\d+$/.test(text) && +text >= min && +text <= max ? +text : undefined;
  const [channels, height, width] = session.data.shape;
  const isModel = id => session.models.some(model => model.id === id);
  read("seed", text => integer(text, 0, 4294967295));
  read("steps", text => session.steps.includes(+text) ? +text : undefined);
  state.step = defaultStep(state.steps);
  read("step", text => { const k = integer(text, 1, state.steps); return k === undefined ? k : k - 1; });
  read("pixel", text => {
    const [row, column, ...more] = text.split(",");
    const pixel = [integer(row, 0, height - 1), integer(column ?? "", 0, width - 1)];
    return more.length || pixel.includes(undefined) ? undefined : pixel;
  });
  read("reference", text => isModel(text) ? text : undefined);
  read("hidden", text => text.split(",").every(isModel) ? text.split(",") : undefined);
  read("picture", text => fromUrlSafe(text, channels * height * width));
  for (const { id, controls } of session.models)
    for (const { name, values } of controls)
      read(`${id}.${name}`, text => values.find(value => String(value) === text), state.options[id], name);
  for (const name of params.keys()) if (!known.has(name)) invalid.push(name.slice(0, 40));
  return { state, invalid };
}

export function toHash(state) {
  const params = new URLSearchParams({
    seed: state.seed, steps: state.steps, step: state.step + 1, pixel: state.pixel.join(","),
    reference: state.reference,
  });
  if (state.hidden.length) params.set("hidden", state.hidden.join(","));
  for (const [id, options] of Object.entries(state.options))
    for (const [name, value] of Object.entries(options)) params.set(`${id}.${name}`, value);
  if (fitsUrl(state.picture)) params.set("picture", toUrlSafe(state.picture));
  return "#" + params.toString().replaceAll("%2C", ",");
}

export const fitsUrl = picture => picture !== null && picture.length <= MAX_PICTURE;

const toUrlSafe = text => text.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");

function fromUrlSafe(text, bytes) {
  const plain = text.replaceAll("-", "+").replaceAll("_", "/");
  const padded = plain.padEnd(4 * Math.ceil(plain.length / 4), "=");
  try {
    return atob(padded).length === bytes ? padded : undefined;
  } catch {
    return undefined;
  }
}
