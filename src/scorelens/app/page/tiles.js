// Images on canvases at one canvas pixel per image pixel; the style sheet scales them.

const LIGHT = [[5, 48, 97], [67, 147, 195], [247, 247, 247], [214, 96, 77], [103, 0, 31]];
const DARK = [[158, 208, 255], [46, 124, 190], [27, 31, 35], [205, 78, 56], [255, 186, 160]];
const dark = matchMedia("(prefers-color-scheme: dark)");

export const onThemeChange = repaint => dark.addEventListener("change", repaint);

const bytes = text => Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
export const floats = text => new Float32Array(bytes(text).buffer);
export const pixels = text => Float32Array.from(bytes(text), byte => byte / 127.5 - 1);

// Values [C, H, W], from black at -limit to white at limit.
export function paintImage(canvas, values, [channels, height, width], limit = 1) {
  const area = height * width;
  paint(canvas, height, width, (k, out) => {
    for (let c = 0; c < 3; c++) {
      const channel = channels === 1 ? 0 : c;
      out[c] = channel < channels ? 127.5 * (values[channel * area + k] / limit + 1) : 0;
    }
  });
}

// Values [H, W], from blue at -limit to red at limit.
export function paintSigned(canvas, values, [, height, width], limit) {
  const colours = dark.matches ? DARK : LIGHT;
  paint(canvas, height, width, (k, out) => {
    const position = 2 + 2 * Math.max(-1, Math.min(1, limit > 0 ? values[k] / limit : 0));
    const left = Math.min(3, Math.floor(position)), share = position - left;
    for (let c = 0; c < 3; c++) out[c] = (1 - share) * colours[left][c] + share * colours[left + 1][c];
  });
}

// a - b, averaged over the channels: [H, W].
export function difference(a, b, [channels, height, width]) {
  const area = height * width, result = new Float32Array(area);
  for (let k = 0; k < a.length; k++) result[k % area] += (a[k] - b[k]) / channels;
  return result;
}

export const maxAbs = values => values.reduce((max, value) => Math.max(max, Math.abs(value)), 0);

function paint(canvas, height, width, colour) {
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d"), image = context.createImageData(width, height), out = [0, 0, 0];
  for (let k = 0; k < height * width; k++) {
    colour(k, out);
    image.data.set([out[0], out[1], out[2], 255], 4 * k); // clamps and rounds
  }
  context.putImageData(image, 0, 0);
}

// The clicked pixel of a canvas: [row, column].
export function pixelAt(canvas, event) {
  const box = canvas.getBoundingClientRect();
  const index = (offset, length, count) => Math.max(0, Math.min(count - 1, Math.floor(offset / length * count)));
  return [index(event.clientY - box.top, box.height, canvas.height),
          index(event.clientX - box.left, box.width, canvas.width)];
}
