// Pictures, heat maps and roles on canvases. Colours are dark to bright, readable in both themes.
const STOPS = ["000004", "1b0c41", "4a0c6b", "781c6d", "a52c60", "cf4446", "ed6925", "fb9b06", "f7d13d", "fcffa4"]
  .map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));
const TINTS = [null, "rgb(47 111 222 / .6)", "rgb(16 16 20 / .85)"];

function heatColour(level, alpha) {
  const place = Math.min(Math.max(level, 0), 1) * (STOPS.length - 1);
  const low = Math.min(Math.floor(place), STOPS.length - 2);
  const mix = STOPS[low].map((value, k) => value + (STOPS[low + 1][k] - value) * (place - low));
  return `rgb(${mix.map(Math.round).join(" ")} / ${alpha})`;
}

const pictures = new Map();
function picture(source) {
  if (!pictures.has(source)) {
    const image = new Image();
    image.src = source;
    pictures.set(source, image.decode().then(() => image));
  }
  return pictures.get(source);
}

// Draw asynchronously, unless a newer drawing of the same canvas has started meanwhile.
const latest = new WeakMap();
async function paint(canvas, side, image, view, draw) {
  const turn = (latest.get(canvas) ?? 0) + 1;
  latest.set(canvas, turn);
  const mirrored = view === 1;
  const decoded = await picture(jpeg(image.crops[mirrored ? 0 : view]));
  if (latest.get(canvas) !== turn) return;
  canvas.width = canvas.height = side;
  const pen = canvas.getContext("2d");
  pen.save();
  if (mirrored) {
    pen.translate(side, 0);
    pen.scale(-1, 1);
  }
  pen.drawImage(decoded, 0, 0, side, side);
  pen.restore();
  draw?.(pen, side);
  canvas.dataset.drawn = String(turn);
}

function box(patch, side) {
  const [rows, columns] = data.grid;
  const [width, height] = [side / columns, side / rows];
  return [(patch % columns) * width, Math.floor(patch / columns) * height, width, height];
}

function centre(patch, side) {
  const [left, top, width, height] = box(patch, side);
  return [left + width / 2, top + height / 2];
}

// Levels are in 0 to 1; a level below zero marks a patch that a view does not cover.
function drawHeat(pen, side, levels) {
  pen.save();
  pen.globalCompositeOperation = "saturation";
  pen.fillStyle = "black";
  pen.fillRect(0, 0, side, side);
  pen.restore();
  levels.forEach((level, patch) => {
    const [left, top, width, height] = box(patch, side);
    pen.fillStyle = level < 0 ? "rgb(128 128 128 / .92)" : heatColour(level, 0.72);
    pen.fillRect(left, top, width + 0.5, height + 0.5);
  });
}

function drawRoles(pen, side, assigned, destinations, cells) {
  for (let patch = 0; patch < patches; patch++) {
    if (!assigned.role[patch]) continue;
    pen.fillStyle = TINTS[assigned.role[patch]];
    pen.fillRect(...box(patch, side));
    if (assigned.role[patch] === 2) drawSlash(pen, side, patch);
  }
  if (cells && assigned.leaders.size) drawCells(pen, side, assigned.leaders);
  if (destinations) {
    for (let patch = 0; patch < patches; patch++) {
      if (assigned.role[patch] === 1) drawArrow(pen, side, patch, destinations[patch]);
    }
  }
}

// A line across a compressed patch, to tell it from a dark part of the picture.
function drawSlash(pen, side, patch) {
  const [left, top, width, height] = box(patch, side);
  pen.strokeStyle = "rgb(255 255 255 / .16)";
  pen.lineWidth = side / 400;
  pen.beginPath();
  pen.moveTo(left, top + height);
  pen.lineTo(left + width, top);
  pen.stroke();
}

function drawCells(pen, side, leaders) {
  const cells = data.budget.cells;
  pen.strokeStyle = "white";
  pen.lineWidth = side / 320;
  pen.setLineDash([side / 60, side / 60]);
  pen.beginPath();
  const [rows, columns] = data.grid;
  for (let line = 1; line < cells; line++) {
    const across = (side * Math.ceil((line * columns) / cells)) / columns;
    const down = (side * Math.ceil((line * rows) / cells)) / rows;
    pen.moveTo(across, 0);
    pen.lineTo(across, side);
    pen.moveTo(0, down);
    pen.lineTo(side, down);
  }
  pen.stroke();
  pen.setLineDash([]);
  pen.lineWidth = side / 160;
  for (const leader of new Set(leaders.values())) {
    const [x, y] = centre(leader, side);
    pen.beginPath();
    pen.arc(x, y, box(0, side)[2] * 0.32, 0, 2 * Math.PI);
    pen.stroke();
  }
}

function drawArrow(pen, side, from, to) {
  const [x, y] = centre(from, side);
  const [endX, endY] = centre(to, side);
  const angle = Math.atan2(endY - y, endX - x);
  const head = side / 60;
  pen.strokeStyle = pen.fillStyle = "#ff9f1c";
  pen.lineWidth = side / 300;
  pen.beginPath();
  pen.moveTo(x, y);
  pen.lineTo(endX, endY);
  pen.stroke();
  pen.beginPath();
  pen.moveTo(endX, endY);
  pen.lineTo(endX - head * Math.cos(angle - 0.45), endY - head * Math.sin(angle - 0.45));
  pen.lineTo(endX - head * Math.cos(angle + 0.45), endY - head * Math.sin(angle + 0.45));
  pen.fill();
}

function drawFocus(pen, side, patch) {
  pen.strokeStyle = "#00e5ff";
  pen.lineWidth = side / 150;
  pen.strokeRect(...box(patch, side));
}
