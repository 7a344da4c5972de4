// The status line, the progress bar and the error box.

import { byId } from "./dom.js";

export function setStatus(text) {
  byId("status").textContent = text;
}

export function showError(text) {
  const sentence = text.replace(/^./, letter => letter.toUpperCase()).replace(/([^.!?…])$/, "$1.");
  byId("error").firstElementChild.textContent = sentence;
  byId("error").hidden = false;
}

export function hideError() {
  byId("error").hidden = true;
}

export function showProgress() {
  byId("progress").hidden = byId("cancel").hidden = false;
}

export function hideProgress() {
  byId("progress").hidden = byId("cancel").hidden = true;
  byId("progress").removeAttribute("value");
}

export function showStage({ model, done, steps, activity }, order, session) {
  if (!model) return;
  const position = Math.max(0, order.indexOf(model)), { label } = session.models.find(({ id }) => id === model);
  byId("progress").value = (position + Math.min(1, done / steps)) / Math.max(1, order.length);
  const trajectory = `step ${Math.min(steps, Math.floor(done) + 1)} of ${steps}`;
  const text = { preparing: "preparing", field: "computing its field", trajectory }[activity];
  if (!byId("progress").hidden) setStatus(`${label}: ${text}`);
}
