// What the app has answered: kept by what was asked, as much as fits, so that going back asks nothing.

import { floats, pixels } from "./tiles.js";

const MOST = 400_000; // values of images for each step: so many answers are kept

let kept = 24;

export function fit([channels, height, width]) {
  kept = Math.max(24, Math.min(500, MOST / (channels * height * width)));
}

class Recent {
  #values = new Map();

  get(key) {
    const value = this.#values.get(key);
    if (value !== undefined) {
      this.#values.delete(key);
      this.#values.set(key, value);
    }
    return value;
  }

  set(key, value) {
    this.#values.delete(key);
    this.#values.set(key, value);
    if (this.#values.size > kept) this.#values.delete(this.#values.keys().next().value);
  }
}

const walks = new Recent(), fields = new Recent();
const lastWalk = new Map(), lastField = new Map(); // what was seen last of each model, shown pale until there is news

export const pick = (state, id) => ({ model: id, options: state.options[id] ?? {} });

export const start = state => ({ seed: state.seed, steps: state.steps, picture: state.picture });

const walkKey = (state, id) => JSON.stringify([pick(state, id), pick(state, state.reference), start(state)]);
const fieldKey = (state, id) => JSON.stringify([walkKey(state, id), state.step, state.pixel]);

export const hasWalk = (state, id) => walks.get(walkKey(state, id))?.done ?? false;
export const hasField = (state, id) => fields.get(fieldKey(state, id)) !== undefined;

export function takeWalk(state, message) {
  const key = walkKey(state, message.model);
  const walk = walks.get(key) ?? { moments: [], nearest: null, error: null, done: false };
  walks.set(key, walk);
  if (message.kind === "moment")
    walk.moments[message.step] = { ...message, z: floats(message.z), x0_hat: floats(message.x0_hat) };
  else if (message.kind === "nearest") Object.assign(walk, { nearest: near(message), done: true });
  else Object.assign(walk, { error: message.error, done: true });
  if (walk.done) lastWalk.set(message.model, walk);
}

export function takeField(state, message) {
  const field = message.kind === "field" ? { ...message, values: floats(message.values), error: null } : message;
  fields.set(fieldKey(state, message.model), field);
  lastField.set(message.model, field);
}

function near({ indices, rms, images, classes }) {
  const decoded = Object.fromEntries(Object.entries(images).map(([index, text]) => [index, pixels(text)]));
  return indices.map((some, step) => ({
    indices: some, rms: rms[step], images: some.map(k => decoded[k]), classes: some.map(k => classes[k]),
  }));
}

// A model at a step: as asked, or pale what was seen last.
export function momentOf(state, id, step) {
  const moment = walks.get(walkKey(state, id))?.moments[step];
  if (moment) return { moment, stale: false };
  const old = lastWalk.get(id)?.moments;
  return old?.length === state.steps && old[step] ? { moment: old[step], stale: true } : null;
}

export const nearestOf = (state, id) =>
  (walks.get(walkKey(state, id))?.nearest ?? lastWalk.get(id)?.nearest)?.[state.step] ?? null;

export const failureOf = (state, id) => walks.get(walkKey(state, id))?.error ?? null;

export function fieldOf(state, id) {
  const field = fields.get(fieldKey(state, id)), old = lastField.get(id);
  if (field) return field.error === null ? { field, stale: false } : null;
  return old && old.error === null ? { field: old, stale: true } : null;
}

export const fieldFailureOf = (state, id) => fields.get(fieldKey(state, id))?.error ?? null;
