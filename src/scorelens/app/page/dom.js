// DOM elements in one call, and number formatting.

export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role" || name === "for") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

export const byId = id => document.getElementById(id);

export function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  return value.toFixed(digits).replace(/^-(?=0\.?0*$)/, "").replace("-", "−");
}

export const short = value => value >= 0.1 ? value.toFixed(2) : Number(value.toPrecision(2)).toString();

export const level = sigma => sigma >= 100 ? sigma.toFixed(0) : sigma.toPrecision(sigma < 1 ? 2 : 3);

export const sigmaText = sigma => `σ = ${level(sigma)}`;

// A canvas with a frame around the selected pixel; onPick(canvas, event) handles clicks.
export function tile(name, onPick) {
  const canvas = el("canvas", { role: "img", width: 1, height: 1 });
  const mark = el("i", { className: "mark", hidden: true });
  const box = el("span", { className: "tile" }, canvas, mark);
  if (onPick) {
    box.classList.add("pick");
    canvas.addEventListener("click", event => onPick(canvas, event));
  }
  return {
    box, canvas, drawn: false, pixel: null,
    describe: text => canvas.setAttribute("aria-label", `${name}: ${text}`),
    frame(pixel) {
      this.pixel = pixel;
      mark.hidden = pixel === null;
      if (pixel === null) return;
      const [row, column] = pixel, percent = (k, count) => `${100 * k / count}%`;
      Object.assign(mark.style, {
        top: percent(row, canvas.height), left: percent(column, canvas.width),
        height: percent(1, canvas.height), width: percent(1, canvas.width),
      });
    },
  };
}
