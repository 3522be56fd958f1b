// The patch that the pointer or the keyboard selects, and its description.
function pointAt(event, canvas) {
  const bounds = canvas.getBoundingClientRect();
  const [rows, columns] = data.grid;
  const column = Math.floor(((event.clientX - bounds.left) / bounds.width) * columns);
  const row = Math.floor(((event.clientY - bounds.top) / bounds.height) * rows);
  if (column < 0 || row < 0 || column >= columns || row >= rows) return;
  focusPatch(row * columns + column, canvas);
}

function walk(event) {
  const [rows, columns] = data.grid;
  const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  if (!move) return;
  if (modified(event)) return;
  const at = view.patch?.at ?? -1;
  if (at < 0) {
    focusPatch(0, event.target);
    event.preventDefault();
    return;
  }
  const row = Math.min(Math.max(Math.floor(at / columns) + move[0], 0), rows - 1);
  const column = Math.min(Math.max((at % columns) + move[1], 0), columns - 1);
  focusPatch(row * columns + column, event.target);
  event.preventDefault();
  event.stopPropagation();
}

function focusPatch(at, canvas) {
  const frame = canvas.id === "roles" ? 0 : frameOf(view.shown);
  if (view.patch?.at === at && view.patch.frame === frame) return;
  view.patch = { at, frame };
  drawImage();
}

// Describe the selected patch. On a view's own grid only its word and the word's TF-IDF are known.
function describePatch(assigned) {
  const place = element("patch");
  if (!view.patch) {
    place.replaceChildren(make("p", { className: "note", textContent: "Point at a patch, or move to a map with Tab and use the arrow keys." }));
    return;
  }
  const { at, frame } = view.patch;
  const stored = arrays(view.image);
  const word = stored.words[frame * patches + at];
  const factors = factorsOf(view.image.label);
  const [contrast, support, idf] = [factors.contrast[word], factors.support[word], data.vocabulary.idf[word]];
  const columns = data.grid[1];
  const lines = [
    ["contrast", contrast.toFixed(3)],
    ["× support", support.toFixed(4)],
    ["× idf", idf.toFixed(3)],
    ["= TF-IDF of its word", (contrast * support * idf).toFixed(4)],
  ];
  if (view.shown.kind !== "score" && frame === frameOf(view.shown)) {
    const value = mapOf(view.shown)[at];
    lines.push(["in this map", value < 0 ? "not covered" : value.toFixed(2)]);
  }
  if (frame === 0) {
    for (const row of new Set(["tfidf", rowOf(view.row).attention, view.row])) lines.push([titleOf(row), stored.scores[row][at].toFixed(4)]);
    lines.push(
      ["rank", `${assigned.rank[at] + 1} of ${patches}`],
      ["role", ROLES[assigned.role[at]]],
    );
    if (assigned.role[at] === 1 && ownBudget()) lines.push(["goes into patch", placeName(stored.destinations[view.row][at])]);
    if (assigned.role[at] === 2) {
      const cell = cellOf(at);
      lines.push(["summary cell", `${cell + 1}, placed at ${placeName(assigned.leaders.get(cell))}`]);
    }
  }
  const link = make("button", { type: "button", textContent: `visual word ${word}` });
  link.addEventListener("click", () => openWord(word));
  place.replaceChildren(
    make("div", {}, `Row ${Math.floor(at / columns) + 1}, column ${(at % columns) + 1} `, link),
    thumbs(word),
    make("dl", {}, ...lines.flatMap(([name, value]) => [make("dt", { textContent: name }), make("dd", { textContent: value })])),
  );
}

const placeName = (patch) => `${Math.floor(patch / data.grid[1]) + 1} / ${(patch % data.grid[1]) + 1}`;

const factorCache = new Map();
function factorsOf(label) {
  if (!factorCache.has(label)) {
    const { contrast, support } = data.factors[label];
    factorCache.set(label, { contrast: halves(contrast), support: halves(support) });
  }
  return factorCache.get(label);
}
