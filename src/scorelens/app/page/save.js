// A view as a PNG, drawn anew at a readable size, or as JSON.

const TILE = 132, GAP = 18, LINE = 20, EDGE = 28;

export function savePng(figure, name) {
  draw(figure).toBlob(blob => download(blob, `${name}.png`), "image/png");
}

export function saveJson(numbers, name) {
  download(new Blob([JSON.stringify(numbers, null, 1)], { type: "application/json" }), `${name}.json`);
}

// The figure's rows of tiles, with names before them and above them, in the page's own colours.
export function draw({ title, columns, rows }) {
  const style = getComputedStyle(document.documentElement), colour = name => style.getPropertyValue(name).trim();
  const font = (size, weight = 400) => `${weight} ${size}px ${colour("--sans")}`;
  const canvas = document.createElement("canvas"), context = canvas.getContext("2d");
  const widest = (texts, how) => {
    context.font = how;
    return Math.ceil(Math.max(0, ...texts.map(text => context.measureText(text).width)));
  };
  const names = widest(rows.map(row => row.name), font(14)), left = names ? names + GAP : 0;
  const cell = Math.max(TILE, widest(columns, font(13, 600)));
  const heights = rows.flatMap(row => row.cells.map(({ tile }) => heightOf(tile)));
  const side = Math.max(...heights), high = side + LINE + GAP, top = EDGE + 3 * LINE;
  const width = Math.max(left + columns.length * (cell + GAP) - GAP, widest([title], font(20, 650)));
  Object.assign(canvas, { width: width + 2 * EDGE, height: top + rows.length * high + EDGE });
  context.fillStyle = colour("--page");
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingEnabled = false;
  const write = (text, x, y, how, ink) => {
    context.font = how;
    context.fillStyle = colour(ink);
    context.fillText(text, x, y);
  };
  write(title, EDGE, EDGE + 14, font(20, 650), "--ink");
  columns.forEach((text, k) => write(text, EDGE + left + k * (cell + GAP), top - 8, font(13, 600), "--ink"));
  rows.forEach((row, i) => {
    const y = top + i * high;
    write(row.name, EDGE, y + side / 2 + 5, font(14), "--muted");
    row.cells.forEach(({ tile, text }, k) => {
      const x = EDGE + left + k * (cell + GAP);
      if (!tile.drawn) return;
      context.drawImage(tile.canvas, x, y, TILE, heightOf(tile));
      frame(context, tile, x, y, colour("--accent"));
      write(text, x, y + side + 15, font(12), "--muted");
    });
  });
  return canvas;
}

const heightOf = ({ canvas }) => Math.round(TILE * canvas.height / canvas.width);

function frame(context, { canvas, pixel }, x, y, ink) {
  if (pixel === null) return;
  const unit = TILE / canvas.width;
  context.strokeStyle = ink;
  context.lineWidth = 2;
  context.strokeRect(x + pixel[1] * unit, y + pixel[0] * unit, unit, unit);
}

function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
