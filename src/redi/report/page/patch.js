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
  const frame = canvas.id === "map" ? frameOf(view.shown) : 0;
  if (view.patch?.at === at && view.patch.frame === frame) return;
  view.patch = { at, frame };
  drawImage();
  keepInSight(canvas);
}

// On a narrow screen the description covers the lower part: the picture moves above it.
function keepInSight(canvas) {
  const panel = element("patch");
  if (getComputedStyle(panel).position !== "fixed") return;
  const { top, bottom } = canvas.getBoundingClientRect();
  if (top < element("viewer-head").offsetHeight || bottom > panel.getBoundingClientRect().top) canvas.scrollIntoView({ block: "start" });
}

// Describe the selected patch. On a view's own grid only its word and the word's TF-IDF are known.
function describePatch(assigned) {
  element("patch").classList.toggle("open", Boolean(view.patch));
  if (!view.patch) {
    element("patch-steps").replaceChildren();
    element("patch-facts").replaceChildren(make("p", { className: "note", textContent: "Point at a patch, or move to a map with Tab and use the arrow keys." }));
    return;
  }
  const { at, frame } = view.patch;
  const columns = data.grid[1];
  const word = arrays(view.image).words[frame * patches + at];
  const link = make("button", { type: "button", textContent: `visual word ${word}` });
  link.addEventListener("click", () => openWord(word));
  const dismiss = make("button", { type: "button", className: "dismiss", textContent: "✕", "aria-label": "Close the description of the patch" });
  dismiss.addEventListener("click", () => {
    view.patch = null;
    drawImage();
  });
  const facts = frame === 0 ? placeFacts(assigned, at) : [];
  element("patch-facts").replaceChildren(
    make("div", { className: "patch-head" }, make("span", { textContent: `Row ${Math.floor(at / columns) + 1}, column ${(at % columns) + 1}` }), link, dismiss),
    make("dl", {}, ...facts.flatMap(([name, value]) => [make("dt", { textContent: name }), make("dd", { textContent: value })])),
  );
  const steps = frame === 0 ? scoreSteps(at) : viewSteps(at, frame);
  element("patch-steps").replaceChildren(
    thumbs(word),
    make("ol", { className: "steps" }, ...[wordStep(word), ...steps].map(stepItem)),
  );
}

// What happens to a patch of the reference crop.
function placeFacts(assigned, at) {
  const { scores, destinations } = arrays(view.image);
  const facts = [
    [titleOf(view.row), digits(scores[view.row][at])],
    ["rank", `${assigned.rank[at] + 1} of ${patches}`],
    ["role", ROLES[assigned.role[at]]],
  ];
  if (assigned.role[at] === 1 && ownBudget()) facts.push(["goes into patch", placeName(destinations[view.row][at])]);
  if (assigned.role[at] === 2) {
    const cell = cellOf(at);
    facts.push(["summary cell", `${cell + 1}, placed at ${placeName(assigned.leaders.get(cell))}`]);
  }
  if (data.merges) facts.push(["accelerated", view.together === 1 ? "a token of its own" : `${view.together} patches in its token`]);
  return facts;
}

// Steps are [name, line, result]: the line ends in the result, and every number in it is shown by an earlier step.
const difference = (value, { low, high }) => `(${digits(value)} − ${digits(low)}) / (${digits(high)} − ${digits(low)})`;

function wordStep(word) {
  const { contrast, support, table } = factorsOf(view.image.label);
  const factors = [contrast[word], support[word], data.vocabulary.idf[word]].map(digits).join(" × ");
  return [`TF-IDF of word ${word}: contrast × support × idf`, factors, digits(table[word])];
}

function viewSteps(at, frame) {
  const { raw, span, lookups } = corpusSteps(view.image).views[frame];
  return [[`${VIEWS[frame]}, min-max over the view`, difference(raw[at], span), digits(lookups[at])]];
}

// The words of a view at the place of a patch, weighted by how near they are, then min-max over the view.
function viewStep(at, number) {
  const { raw, span, terms, aligned } = corpusSteps(view.image).views[number];
  const name = `${VIEWS[number]}, min-max over the view`;
  if (!terms[at]) return [VIEWS[number], "does not cover this patch", ""];
  const words = arrays(view.image).words.subarray(number * patches, (number + 1) * patches);
  const mixed = terms[at].reduce((sum, { patch, weight }) => sum + weight * raw[patch], 0);
  const single = terms[at].length === 1;
  const parts = terms[at].map(({ patch, weight }) => `${single ? "" : `${digits(weight)} × `}${digits(raw[patch])} [word ${words[patch]}]`);
  const line = single ? parts[0] : `${parts.join(" + ")} = ${digits(mixed)}`;
  return [name, `${line}; ${difference(mixed, span)}`, digits(aligned[at])];
}

function scoreSteps(at) {
  const { image, row } = view;
  const { scores } = arrays(image);
  const { mixed, span } = corpusSteps(image);
  const { attention } = rowOf(row);
  const [low, high] = image.ranges[attention];
  const covering = corpusSteps(image).views.filter(({ terms }) => terms[at]).length;
  const { mean, most, value } = mixed[at];
  const weights = [data.mean_weight, 1 - data.mean_weight].map((weight) => String(+weight.toFixed(4)));
  const steps = [
    ...VIEWS.map((_, number) => viewStep(at, number)),
    [`Mean and maximum of ${covering} views`, `${weights[0]} × ${digits(mean)} + ${weights[1]} × ${digits(most)}`, digits(value)],
    [`${titleOf("tfidf")}, min-max over the image`, difference(value, span), digits(normalised(value, span))],
    [`${titleOf(attention)}, min-max over the image`, difference(low + scores[attention][at] * (high - low), { low, high }), digits(scores[attention][at])],
  ];
  if (row === `redi_${attention}`) {
    const { products, span: reach } = productSteps(image, attention);
    steps.push(
      ["Product", `${digits(normalised(value, span))} × ${digits(scores[attention][at])}`, digits(products[at])],
      [`${titleOf(row)}, min-max over the image`, difference(products[at], reach), digits(scores[row][at])],
    );
  } else if (row !== "tfidf" && row !== attention) {
    steps.push([titleOf(row), "drawn at random", digits(scores[row][at])]);
  }
  return steps;
}

function stepItem([name, line, result]) {
  return make("li", {}, make("span", { textContent: name }), make("span", { className: "line", textContent: result ? `${line} = ` : line }, make("b", { textContent: result })));
}

const placeName = (patch) => `${Math.floor(patch / data.grid[1]) + 1} / ${(patch % data.grid[1]) + 1}`;
