// What the page says of itself: what it is doing, and what went wrong.

import { byId } from "./dom.js";

export function say(sentence) {
  byId("status").textContent = sentence;
}

export function complain(sentence) {
  const text = sentence.replace(/^./, letter => letter.toUpperCase()).replace(/([^.!?…])$/, "$1.");
  byId("error").firstElementChild.textContent = text;
  byId("error").hidden = false;
}

export function forgive() {
  byId("error").hidden = true;
}

export function showProgress() {
  byId("progress").hidden = byId("cancel").hidden = false;
}

export function finishProgress() {
  byId("progress").hidden = byId("cancel").hidden = true;
  byId("progress").removeAttribute("value");
}

export function showStage({ model, done, steps, doing }, order, session) {
  if (!model) return;
  const place = Math.max(0, order.indexOf(model)), { label } = session.models.find(one => one.id === model);
  byId("progress").value = (place + Math.min(1, done / steps)) / Math.max(1, order.length);
  const walking = `step ${Math.min(steps, Math.floor(done) + 1)} of ${steps}`;
  const what = { preparing: "preparing", looking: "its field", walking }[doing];
  if (!byId("progress").hidden) say(`${label}: ${what}`);
}
