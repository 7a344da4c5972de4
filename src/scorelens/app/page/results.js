// A cache of the app's results by request, so that returning to an earlier state computes nothing.

import { floats, pixels } from "./tiles.js";

const MAX_VALUES = 400_000; // image values per step in all cached results

let capacity = 24;

export function setShape([channels, height, width]) {
  capacity = Math.max(24, Math.min(500, MAX_VALUES / (channels * height * width)));
}

class LRUCache {
  #values = new Map();

  get(key) {
    const value = this.#values.get(key);
    if (value !== undefined) this.set(key, value);
    return value;
  }

  set(key, value) {
    this.#values.delete(key);
    this.#values.set(key, value);
    if (this.#values.size > capacity) this.#values.delete(this.#values.keys().next().value);
  }
}

const trajectories = new LRUCache(), fields = new LRUCache();
const lastTrajectory = new Map(), lastField = new Map(); // of each model, shown faded until the new one arrives

export const choice = (state, id) => ({ model: id, options: state.options[id] ?? {} });

export const start = state => ({ seed: state.seed, steps: state.steps, picture: state.picture });

const trajectoryKey = (state, id) =>
  JSON.stringify([choice(state, id), choice(state, state.reference), start(state)]);
const fieldKey = (state, id) => JSON.stringify([trajectoryKey(state, id), state.step, state.pixel]);
const trajectoryOf = (state, id) => trajectories.get(trajectoryKey(state, id));

export const hasTrajectory = (state, id) => trajectoryOf(state, id)?.done ?? false;
export const hasField = (state, id) => fields.get(fieldKey(state, id)) !== undefined;

export function addToTrajectory(state, message) {
  const key = trajectoryKey(state, message.model);
  const trajectory = trajectories.get(key) ?? { predictions: [], nearest: null, error: null, done: false };
  trajectories.set(key, trajectory);
  if (message.kind === "prediction")
    trajectory.predictions[message.step] = { ...message, z: floats(message.z), x0_hat: floats(message.x0_hat) };
  else if (message.kind === "nearest") Object.assign(trajectory, { nearest: decodeNearest(message), done: true });
  else Object.assign(trajectory, { error: message.error, done: true });
  if (trajectory.done) lastTrajectory.set(message.model, trajectory);
}

export function addField(state, message) {
  const field = message.kind === "field"
    ? { ...message, values: floats(message.values), behind: decodeBehind(message.behind), error: null } : message;
  fields.set(fieldKey(state, message.model), field);
  lastField.set(message.model, field);
}

// The training images behind a pixel, in the order of their weights.
function decodeBehind(behind) {
  if (!behind) return null;
  const { indices, weights, effective, images, classes, mask } = behind;
  return { effective, mask: mask === null ? null : floats(mask), images: indices.map((index, k) => ({
    index, weight: weights[k], pixels: pixels(images[index]), label: classes[index] })) };
}

function decodeNearest({ indices, rms, images, classes }) {
  const decoded = Object.fromEntries(Object.entries(images).map(([index, text]) => [index, pixels(text)]));
  return indices.map((nearest, step) => ({
    indices: nearest, rms: rms[step], images: nearest.map(k => decoded[k]), classes: nearest.map(k => classes[k]),
  }));
}

// One step of a model: the current result, or the last one, marked stale.
export function predictionOf(state, id, step) {
  const prediction = trajectoryOf(state, id)?.predictions[step];
  if (prediction) return { prediction, stale: false };
  const last = lastTrajectory.get(id)?.predictions;
  return last?.length === state.steps && last[step] ? { prediction: last[step], stale: true } : null;
}

export const nearestOf = (state, id) =>
  (trajectoryOf(state, id)?.nearest ?? lastTrajectory.get(id)?.nearest)?.[state.step] ?? null;

export const failureOf = (state, id) => trajectoryOf(state, id)?.error ?? null;

export function fieldOf(state, id) {
  const current = fields.get(fieldKey(state, id)), field = current ?? lastField.get(id);
  return field?.error === null ? { field, stale: !current } : null;
}

export const fieldFailureOf = (state, id) => fields.get(fieldKey(state, id))?.error ?? null;
