// Downloads of a view: as a PNG, redrawn at a readable size, or as JSON.

const TILE = 132, GAP = 18, LINE = 20, MARGIN = 28;

export function savePng(figure, name) {
  draw(figure).toBlob(blob => download(blob, `${name}.png`), "image/png");
}

export function saveJson(numbers, name) {
  download(new Blob([JSON.stringify(numbers, null, 1)], { type: "application/json" }), `${name}.json`);
}

// The tiles of a figure with row and column names, in the colours of the page.
function draw({ title, columns, rows }) {
  const style = getComputedStyle(document.documentElement), colour = name => style.getPropertyValue(name).trim();
  const sans = (size, weight = 400) => `${weight} ${size}px ${colour("--sans")}`;
  const canvas = document.createElement("canvas"), context = canvas.getContext("2d");
  const maxWidth = (texts, font) => {
    context.font = font;
    return Math.ceil(Math.max(0, ...texts.map(text => context.measureText(text).width)));
  };
  const nameWidth = maxWidth(rows.map(row => row.name), sans(14)), left = MARGIN + (nameWidth ? nameWidth + GAP : 0);
  const columnWidth = Math.max(TILE, maxWidth(columns, sans(13, 600))) + GAP, top = MARGIN + 3 * LINE;
  const tileHeight = Math.max(...rows.flatMap(row => row.cells.map(({ tile }) => heightOf(tile))));
  const rowHeight = tileHeight + LINE + GAP;
  const right = Math.max(left + columns.length * columnWidth - GAP, MARGIN + maxWidth([title], sans(20, 650)));
  Object.assign(canvas, { width: right + MARGIN, height: top + rows.length * rowHeight + MARGIN });
  context.fillStyle = colour("--page");
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingEnabled = false;
  const write = (text, x, y, font, ink) => {
    Object.assign(context, { font, fillStyle: colour(ink) });
    context.fillText(text, x, y);
  };
  write(title, MARGIN, MARGIN + 14, sans(20, 650), "--ink");
  columns.forEach((text, k) => write(text, left + k * columnWidth, top - 8, sans(13, 600), "--ink"));
  rows.forEach((row, i) => {
    const y = top + i * rowHeight;
    write(row.name, MARGIN, y + tileHeight / 2 + 5, sans(14), "--muted");
    row.cells.forEach(({ tile, text }, k) => {
      if (!tile.drawn) return;
      const x = left + k * columnWidth;
      context.drawImage(tile.canvas, x, y, TILE, heightOf(tile));
      frame(context, tile, x, y, colour("--accent"));
      write(text, x, y + tileHeight + 15, sans(12), "--muted");
    });
  });
  return canvas;
}

const heightOf = ({ canvas }) => Math.round(TILE * canvas.height / canvas.width);

function frame(context, { canvas, pixel }, x, y, strokeStyle) {
  if (pixel === null) return;
  const unit = TILE / canvas.width;
  Object.assign(context, { strokeStyle, lineWidth: 2 });
  context.strokeRect(x + pixel[1] * unit, y + pixel[0] * unit, unit, unit);
}

function download(blob, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
