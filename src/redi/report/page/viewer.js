// One large image with its maps and roles, a budget that can be changed, and the selected patch.
const VIEWS = ["centre crop", "its mirror image", "random crop 1", "random crop 2"];
const LARGE = 560;
const SMALL = 160;
const view = { image: null, row: data.main, budget: { ...data.budget }, merge: data.budget.merge, shown: null, patch: null };

const ownBudget = () => view.budget.keep === data.budget.keep && view.budget.merge === data.budget.merge;

function startViewer() {
  fill(element("viewer-row"), data.rows.map((row) => [row.name, row.title]), data.main);
  element("viewer-row").addEventListener("input", () => pickScore(element("viewer-row").value));
  for (const id of ["arrows", "cells"]) element(id).addEventListener("input", drawImage);
  element("colour").addEventListener("input", () => {
    buildStrips();
    drawImage();
  });
  element("keep").addEventListener("input", () => setBudget(Number(element("keep").value) / 100, view.merge));
  element("merge").addEventListener("input", () => setBudget(view.budget.keep, Number(element("merge").value) / 100));
  element("reset").addEventListener("click", () => setBudget(data.budget.keep, data.budget.merge));
  element("close").addEventListener("click", () => element("viewer").close());
  element("previous").addEventListener("click", () => step(-1));
  element("next").addEventListener("click", () => step(1));
  element("viewer").addEventListener("close", () => {
    if (location.hash.startsWith("#image=")) history.replaceState(null, "", "#explorer");
    // The browser would return to the image that was opened first.
    document.querySelector(`#grid [data-index="${view.image.index}"]`)?.focus();
  });
  element("viewer").addEventListener("keydown", keys);
  for (const canvas of document.querySelectorAll("#viewer canvas[tabindex]")) {
    canvas.addEventListener("pointermove", (event) => pointAt(event, canvas));
    canvas.addEventListener("pointerdown", (event) => pointAt(event, canvas));
    canvas.addEventListener("keydown", walk);
  }
}

// The image at the top of the page: every step in one line.
function drawHero() {
  const image = data.images.find((entry) => entry.index === data.hero);
  const { scores, destinations } = arrays(image);
  const { attention } = rowOf(data.main);
  const heat = (row) => (pen, side) => drawHeat(pen, side, ranked(scores[row]));
  const roles = (pen, side) =>
    drawRoles(pen, side, assign(scores[data.main], data.budget), destinations[data.main], true);
  const steps = [
    [data.classes[image.label], null],
    [titleOf("tfidf"), heat("tfidf")],
    [`× ${titleOf(attention)}`, heat(attention)],
    [`= ${titleOf(data.main)}`, heat(data.main)],
    ["keep, merge, compress", roles],
  ];
  [...element("hero").children].forEach((step, k) => {
    paint(step.querySelector("canvas"), 320, image, 0, steps[k][1]);
    step.querySelector("i").textContent = steps[k][0];
  });
  element("hero").addEventListener("click", () => show(image.index, data.main));
}

const modified = (event) => event.altKey || event.ctrlKey || event.metaKey;

function keys(event) {
  if (event.target.matches("input, select, canvas") || modified(event)) return;
  const rows = data.rows.map((row) => row.name);
  const turn = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (event.key === "ArrowLeft") step(-1);
  else if (event.key === "ArrowRight") step(1);
  else if (turn) pickScore(rows[(rows.indexOf(view.row) + turn + rows.length) % rows.length]);
  else return;
  event.preventDefault();
}

function step(by) {
  const among = listed.includes(view.image) ? listed : data.images;
  const { index } = among[(among.indexOf(view.image) + by + among.length) % among.length];
  history.replaceState(null, "", `#image=${index}&score=${view.row}`);
  openImage(index, view.row);
}

function show(index, row) {
  location.hash = `image=${index}&score=${row}`;
}

function openImage(index, row) {
  const image = data.images.find((entry) => entry.index === index);
  if (!image) return false;
  if (!element("viewer").open) {
    view.row = element("row").value;
    view.budget = { ...data.budget };
    view.merge = data.budget.merge;
    element("viewer").showModal();
  }
  if (row && data.rows.some((entry) => entry.name === row)) view.row = row;
  view.image = image;
  view.shown = { kind: "score", row: view.row };
  view.patch = null;
  element("viewer-row").value = view.row;
  element("viewer-title").textContent = `${data.classes[image.label]} · ${image.name}`;
  buildStrips();
  drawImage();
  return true;
}

function pickScore(row) {
  view.row = row;
  view.shown = { kind: "score", row };
  element("viewer-row").value = row;
  history.replaceState(null, "", `#image=${view.image.index}&score=${row}`);
  drawImage();
}

// The chosen merge rate is remembered; the rate in use is limited to the patches that are not kept.
function setBudget(keep, merge) {
  view.merge = merge;
  view.budget = { ...view.budget, keep, merge: keep ? Math.min(merge, 1 - keep) : 0 };
  drawImage();
}

// Levels to colour a map by: its values, or the ranks of its patches.
function levelsOf(shown) {
  const stored = arrays(view.image);
  const byRank = element("colour").value === "rank";
  if (shown.kind === "score") {
    const scores = stored.scores[shown.row];
    return byRank ? ranked(scores) : Array.from(scores);
  }
  const values = mapOf(shown);
  if (!byRank) return values;
  const levels = ranked(values);
  return levels.map((level, patch) => (values[patch] < 0 ? -1 : level));
}

// TF-IDF of a view, in 0 to 1; -1 for a patch that the view does not cover.
function mapOf(shown) {
  const steps = corpusSteps(view.image).views[shown.view];
  return shown.kind === "view" ? steps.lookups : steps.aligned.map((value) => value ?? -1);
}

function ranked(scores) {
  const levels = new Array(patches);
  ranking(scores).forEach((patch, place) => (levels[patch] = scores[patch] > 0 ? 1 - place / patches : 0));
  return levels;
}

const frameOf = (shown) => (shown.kind === "view" ? shown.view : 0);
const nameOf = (shown) =>
  shown.kind === "score" ? titleOf(shown.row) : `TF-IDF, ${VIEWS[shown.view]}${shown.kind === "view" ? "" : ", aligned"}`;

function drawImage() {
  const { image, shown } = view;
  const assigned = assign(arrays(image).scores[view.row], view.budget);
  const plain = element("colour").value === "none";
  const focus = (pen, side, frame) => {
    if (view.patch && view.patch.frame === frame) drawFocus(pen, side, view.patch.at);
  };
  paint(element("map"), LARGE, image, frameOf(shown), (pen, side) => {
    if (!plain) drawHeat(pen, side, levelsOf(shown));
    focus(pen, side, frameOf(shown));
  });
  const arrows = element("arrows").checked && ownBudget() ? arrays(image).destinations[view.row] : null;
  paint(element("roles"), LARGE, image, 0, (pen, side) => {
    drawRoles(pen, side, assigned, arrows, element("cells").checked);
    focus(pen, side, 0);
  });
  element("roles").dataset.arrows = arrows ? "drawn" : "none";
  drawMerges();
  describe(assigned);
}

function describe(assigned) {
  const { image, shown } = view;
  const kind = outcome(image, element("classifier").value, view.row);
  element("badge").textContent = outcomes[kind];
  element("badge").className = `badge ${kind}`;
  const { keep, merge, compress } = assigned.sizes;
  const colours = { rank: ", coloured by rank", value: ", coloured by value", none: "" };
  element("map-caption").textContent = nameOf(shown) + colours[element("colour").value];
  element("map").setAttribute("aria-label", `${nameOf(shown)} of ${data.classes[image.label]}: arrow keys move over the patches`);
  element("roles").setAttribute("aria-label", `Roles: ${keep} patches kept, ${merge} merged, ${compress} compressed`);
  element("roles-caption").replaceChildren(
    ...[["keep", keep], ["merge", merge], ["compress", compress]].flatMap(([role, count]) => [
      make("span", { className: `key ${role}` }), ` ${role} ${count}   `,
    ]),
  );
  element("keep").value = Math.round(100 * view.budget.keep);
  element("merge").value = Math.round(100 * view.budget.merge);
  element("keep-value").textContent = `${(100 * view.budget.keep).toFixed(0)} %, ${keep}`;
  element("merge-value").textContent = `${(100 * view.budget.merge).toFixed(0)} %, ${merge}`;
  const countsLine = element("counts");
  Object.assign(countsLine.dataset, { keep, merge, compress, tokens: assigned.tokens });
  const leaders = [...assigned.leaders].sort((a, b) => a[0] - b[0]).map(([, patch]) => patch);
  Object.assign(element("roles").dataset, { roles: assigned.role.join(""), leaders: leaders.join(" ") });
  const text =
    `${patches} patches become ${assigned.tokens} tokens, ${data.geometry.prefix + assigned.tokens} with the prefix: ` +
    `${blockCost(assigned.tokens).toFixed(3)} of the blocks' arithmetic.` +
    (ownBudget() ? "" : " Arrows are drawn at the run's own budget only.");
  if (countsLine.textContent !== text) countsLine.textContent = text;
  drawAnswers();
  for (const button of document.querySelectorAll(".strip button")) {
    button.setAttribute("aria-pressed", String(button.dataset.map === JSON.stringify(shown)));
  }
  describePatch(assigned);
}

function drawAnswers() {
  const { image } = view;
  const classifier = element("classifier").value;
  const guesses = image.top5[classifier];
  const table = element("answers");
  const cell = ([label, logit]) => {
    const right = label === image.truth[classifier];
    return [
      make("td", { textContent: data.titles[classifier][label] ?? String(label), className: right ? "rescued" : "" }),
      make("td", { textContent: logit.toFixed(2) }),
    ];
  };
  const head = ["Place", "Dense", "logit", `Reduced by ${titleOf(view.row)}`, "logit"];
  table.tHead?.remove();
  for (const body of [...table.tBodies]) body.remove();
  const rows = guesses.dense.map((_, place) =>
    make("tr", {}, make("th", { scope: "row", textContent: String(place + 1) }), ...cell(guesses.dense[place]), ...cell(guesses[view.row][place])));
  table.append(
    make("thead", {}, make("tr", {}, ...head.map((text) => make("th", { scope: "col", textContent: text })))),
    make("tbody", {}, ...rows),
  );
}

function buildStrips() {
  const { image } = view;
  const entry = (shown, text) => {
    const canvas = make("canvas", { width: SMALL, height: SMALL, role: "img", "aria-label": text });
    const button = make("button", { type: "button" }, canvas, text);
    button.dataset.map = JSON.stringify(shown);
    button.addEventListener("click", () => {
      if (shown.kind === "score") return pickScore(shown.row);
      view.shown = shown;
      view.patch = null;
      drawImage();
    });
    paint(canvas, SMALL, image, frameOf(shown), (pen, side) => drawHeat(pen, side, levelsOf(shown)));
    return button;
  };
  element("views").replaceChildren(...VIEWS.map((text, k) => entry({ kind: "view", view: k }, text)));
  element("aligned").replaceChildren(...VIEWS.map((text, k) => entry({ kind: "aligned", view: k }, text)));
  element("scores").replaceChildren(...data.rows.map((row) => entry({ kind: "score", row: row.name }, row.title)));
}
