// What redi.accelerate merges, block by block. Patches of one token form a region with the mean colour of its members.
const REGION = "rgb(255 255 255 / .85)";
const JOINED = "#ff9f1c";

function startMerges() {
  const place = element("merges-part");
  if (!data.merges) {
    place.replaceChildren(make("p", { className: "note", textContent: "What redi.accelerate merges in this image is not recorded: `redi compare RUN --study accelerate` adds it." }));
    return;
  }
  const slider = element("block");
  slider.max = slider.value = data.merges.schedule.length;
  element("merges-cost").textContent = data.merges.cost.toFixed(2);
  slider.addEventListener("input", drawImage);
}

// The name of the token of each patch after a block: the first patch of that token.
function namesAfter(image, block) {
  const { block: ended, into } = arrays(image).merges;
  return Uint16Array.from({ length: patches }, (_, patch) => {
    let name = patch;
    while (ended[name] && ended[name] <= block && into[name] < name) name = into[name];
    return name;
  });
}

function drawMerges() {
  if (!data.merges) return;
  const { image } = view;
  const block = Number(element("block").value);
  const names = namesAfter(image, block);
  const { block: ended, into } = arrays(image).merges;
  const joins = Array.from(ended.keys()).filter((patch) => block && ended[patch] === block);
  const changed = new Set(joins.map((patch) => names[patch]));
  const left = new Set(names).size;
  const marked = view.patch?.frame === 0 ? view.patch.at : null;
  const members = Array.from(names.keys()).filter((patch) => marked !== null && names[patch] === names[marked]);
  paint(element("merges"), LARGE, image, 0, (pen, side) => {
    fillRegions(pen, side, names);
    outlineRegions(pen, side, names, changed);
    if (element("arrows").checked) for (const patch of joins) drawArrow(pen, side, patch, into[patch]);
    for (const patch of members) drawFocus(pen, side, patch);
  });
  const depth = data.merges.schedule.length;
  element("block-value").textContent = block ? `${block} of ${depth}` : "none yet";
  const text = block
    ? `After block ${block}: ${left} tokens for ${patches} patches. ` +
      (joins.length ? `This block merged ${joins.length} tokens into others.` : "This block merged nothing.")
    : `Before block 1: ${patches} tokens, one per patch.`;
  if (element("merged").textContent !== text) element("merged").textContent = text;
  view.together = members.length;
  element("merged-patch").textContent = !members.length
    ? ""
    : `Row and column ${placeName(marked)}: ` + (members.length === 1 ? "a token of its own." : `one token with ${members.length - 1} other patches.`);
  element("merges").setAttribute("aria-label", `${text} Arrow keys move over the patches.`);
  Object.assign(element("merges").dataset, { tokens: left, names: Array.from(names).join(" ") });
}

// A token of several patches is filled with their mean colour; a patch of its own stays as it is.
function fillRegions(pen, side, names) {
  const [rows, columns] = data.grid;
  const small = make("canvas", { width: columns, height: rows }).getContext("2d");
  small.imageSmoothingQuality = "high";
  small.drawImage(pen.canvas, 0, 0, columns, rows);
  const { data: pixels } = small.getImageData(0, 0, columns, rows);
  const sums = new Map();
  names.forEach((name, patch) => {
    const sum = sums.get(name) ?? [0, 0, 0, 0];
    sums.set(name, sum.map((value, k) => value + (k < 3 ? pixels[4 * patch + k] : 1)));
  });
  names.forEach((name, patch) => {
    const [red, green, blue, count] = sums.get(name);
    if (count === 1) return;
    const [x, y, width, height] = box(patch, side);
    pen.fillStyle = `rgb(${[red, green, blue].map((value) => Math.round(value / count)).join(" ")})`;
    pen.fillRect(x, y, width + 0.5, height + 0.5);
  });
}

// A line wherever two neighbours belong to different tokens, one of which has several patches.
function outlineRegions(pen, side, names, changed) {
  const [rows, columns] = data.grid;
  const counts = new Map();
  for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1);
  const lines = { [REGION]: new Path2D(), [JOINED]: new Path2D() };
  const border = (patch, other, from, to) => {
    const [first, second] = [names[patch], other === null ? null : names[other]];
    if (first === second) return;
    if (counts.get(first) === 1 && (second === null || counts.get(second) === 1)) return;
    const path = lines[changed.has(first) || changed.has(second) ? JOINED : REGION];
    path.moveTo(...from);
    path.lineTo(...to);
  };
  for (let patch = 0; patch < patches; patch++) {
    const [x, y, width, height] = box(patch, side);
    const [column, row] = [patch % columns, Math.floor(patch / columns)];
    border(patch, column + 1 < columns ? patch + 1 : null, [x + width, y], [x + width, y + height]);
    border(patch, row + 1 < rows ? patch + columns : null, [x, y + height], [x + width, y + height]);
    if (!column) border(patch, null, [x, y], [x, y + height]);
    if (!row) border(patch, null, [x, y], [x + width, y]);
  }
  for (const [colour, path] of Object.entries(lines)) {
    pen.strokeStyle = colour;
    pen.lineWidth = side / (colour === JOINED ? 200 : 330);
    pen.stroke(path);
  }
}
