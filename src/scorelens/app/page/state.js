// What is shown, and how the address says it.

const LONGEST_PICTURE = 100_000; // characters; a longer one is not part of the address

export function beginning(session) {
  const [, height, width] = session.data.shape;
  const options = {};
  for (const model of session.models)
    options[model.id] = Object.fromEntries(model.controls.map(control => [control.name, control.value]));
  const steps = session.steps.includes(10) ? 10 : session.steps[0];
  return {
    seed: 0, steps, step: Math.round(0.7 * (steps - 1)), pixel: [height >> 1, width >> 1],
    reference: session.models[0].id, hidden: [], options, picture: null,
  };
}

// The state that an address tells, and what in it does not fit this session.
export function fromAddress(hash, session) {
  const state = beginning(session), misfits = [];
  const told = new URLSearchParams(hash.replace(/^#/, "")), asked = new Set();
  const read = (name, fits, into = state, key = name) => {
    const text = told.get(name);
    asked.add(name);
    if (text === null) return;
    const value = fits(text);
    if (value === undefined) misfits.push(`${name}=${text.slice(0, 40)}`);
    else into[key] = value;
  };
  const whole = (text, least, most) => /^\d+$/.test(text) && +text >= least && +text <= most ? +text : undefined;
  const [channels, height, width] = session.data.shape;
  const known = id => session.models.some(model => model.id === id);
  read("seed", text => whole(text, 0, 4294967295));
  read("steps", text => session.steps.includes(+text) ? +text : undefined);
  state.step = Math.round(0.7 * (state.steps - 1));
  read("step", text => { const k = whole(text, 1, state.steps); return k === undefined ? k : k - 1; });
  read("pixel", text => {
    const [row, column, ...more] = text.split(",");
    const pixel = [whole(row, 0, height - 1), whole(column ?? "", 0, width - 1)];
    return more.length || pixel.includes(undefined) ? undefined : pixel;
  });
  read("reference", text => known(text) ? text : undefined);
  read("hidden", text => text.split(",").every(known) ? text.split(",") : undefined);
  read("picture", text => fromWebSafe(text, channels * height * width));
  for (const { id, controls } of session.models)
    for (const { name, values } of controls)
      read(`${id}.${name}`, text => values.find(value => String(value) === text), state.options[id], name);
  for (const name of told.keys()) if (!asked.has(name)) misfits.push(name.slice(0, 40));
  return { state, misfits };
}

export function toAddress(state) {
  const told = new URLSearchParams({
    seed: state.seed, steps: state.steps, step: state.step + 1, pixel: state.pixel.join(","),
    reference: state.reference,
  });
  if (state.hidden.length) told.set("hidden", state.hidden.join(","));
  for (const [id, options] of Object.entries(state.options))
    for (const [name, value] of Object.entries(options)) told.set(`${id}.${name}`, value);
  if (fitsAddress(state.picture)) told.set("picture", toWebSafe(state.picture));
  return "#" + told.toString().replaceAll("%2C", ",");
}

export const fitsAddress = picture => picture !== null && picture.length <= LONGEST_PICTURE;

const toWebSafe = text => text.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");

function fromWebSafe(text, bytes) {
  const plain = text.replaceAll("-", "+").replaceAll("_", "/");
  const padded = plain.padEnd(4 * Math.ceil(plain.length / 4), "=");
  try {
    return atob(padded).length === bytes ? padded : undefined;
  } catch {
    return undefined;
  }
}
