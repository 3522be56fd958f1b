// The page of `redi dense`: a scene, a row and a cost are chosen; everything below follows.
const PANELS = ["picture", "labels", "merged", "dense", "row", "change"];
const state = { scene: 0, kind: "", cost: "", border: 0.5 };
let shown = null; // the arrays of what is shown
let turn = 0;

const kindOf = (row) => `${row.row}~${row.restore}`;
const chosenRow = () => data.rows.find((row) => kindOf(row) === state.kind && String(row.cost) === state.cost);
const className = (value) => (value === VOID ? "void" : data.classes[value]?.name ?? String(value));
const percent = (count, all) => `${((100 * count) / all).toFixed(1)} %`;

function startChoice() {
  element("thumbs").replaceChildren(
    ...data.scenes.map((scene, number) => {
      const button = make("button", { type: "button" }, make("img", { src: jpeg(scene.picture), alt: "" }), make("span", { textContent: scene.name }));
      button.addEventListener("click", () => { state.scene = number; show(); });
      return button;
    }),
  );
  const kinds = new Map(data.rows.map((row) => [kindOf(row), row.title]));
  const own = Object.values(data.references)[0];
  state.kind = kindOf(data.rows.find((row) => row.name === own));
  state.cost = String(data.costs[Math.floor((data.costs.length - 1) / 2)]);
  fill(element("row"), [...kinds], state.kind);
  fill(element("cost"), data.costs.map((cost) => [String(cost), cost.toFixed(2)]), state.cost);
  element("row").addEventListener("change", (event) => { state.kind = event.target.value; show(); });
  element("cost").addEventListener("change", (event) => { state.cost = event.target.value; show(); });
  element("strength").addEventListener("input", paintAll);
  element("border").addEventListener("input", (event) => { state.border = event.target.value / 1000; paintWipe(); });
  element("choice").addEventListener("submit", (event) => event.preventDefault());
}

async function show() {
  const mine = ++turn;
  const scene = data.scenes[state.scene];
  const row = chosenRow();
  [...element("thumbs").children].forEach((button, number) => button.setAttribute("aria-pressed", String(number === state.scene)));
  if (!row) {
    element("row-caption").textContent = "This row was not measured at this cost.";
    return;
  }
  const [picture, labels, dense, map] = await Promise.all([
    pictureOf(scene), classMap(scene, null), classMap(scene, "dense"), classMap(scene, row.name),
  ]);
  if (mine !== turn) return;
  shown = { scene, row, picture, labels, dense, map, groups: groupsOf(scene, row) };
  element("place").textContent = "Point at a panel: its classes and its token appear here.";
  paintAll();
  document.documentElement.dataset.drawn = String(mine);
}

function paintAll() {
  const strength = Number(element("strength").value) / 100;
  element("strength-value").textContent = `${element("strength").value} %`;
  if (!shown) return;
  const { scene, row, picture, labels, dense, map, groups } = shown;
  const layer = (id, values) => put(element(id), scene, colourOfMap(scene, picture, values, strength));
  put(element("panel-picture"), scene, (k) => picture.subarray(4 * k, 4 * k + 3));
  layer("panel-labels", labels);
  layer("panel-dense", dense);
  layer("panel-row", map);
  const changed = changes(scene, picture, labels, dense, map);
  put(element("panel-change"), scene, changed.paint);
  const tokens = drawMerged(element("panel-merged"), scene, picture, groups);
  const labelled = labels.filter((value) => value !== VOID).length;
  const right = (values) => percent(values.filter((value, k) => value === labels[k]).length, labelled);
  const [better, worse, other] = changed.counts;
  element("dense-caption").textContent = `Dense: ${right(dense)} of the labelled pixels right`;
  element("row-caption").textContent = `${row.title} at cost ${row.cost}: ${right(map)} right`;
  element("change-caption").textContent =
    `Where they differ, ${percent(better + worse + other, map.length)}: green, only the row is right (${better.toLocaleString("en")}); ` +
    `red, only dense is (${worse.toLocaleString("en")}); yellow, neither or void (${other.toLocaleString("en")})`;
  element("merged-caption").textContent = `${groups.length} patches became ${tokens} tokens, each in the mean colour of its patches and a tint of its own`;
  element("wipe-right").textContent = `${row.title}, cost ${row.cost}`;
  element("wipe-caption").textContent = `${scene.name}: drag the border, or use the arrow keys on the slider.`;
  shown.panels = PANELS.map((name) => {
    const canvas = element(`panel-${name}`);
    return canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  });
  paintWipe();
  showLegend();
}

function paintWipe() {
  if (!shown) return;
  const canvas = element("wipe");
  const [height, width] = shown.scene.size;
  const scale = Math.max(1, Math.min(3, Math.round(900 / width)));
  [canvas.width, canvas.height] = [width * scale, height * scale];
  const pen = canvas.getContext("2d");
  const at = Math.round(state.border * canvas.width);
  pen.drawImage(element("panel-dense"), 0, 0, canvas.width, canvas.height);
  pen.save();
  pen.beginPath();
  pen.rect(at, 0, canvas.width - at, canvas.height);
  pen.clip();
  pen.drawImage(element("panel-row"), 0, 0, canvas.width, canvas.height);
  pen.restore();
  pen.fillStyle = "#fff";
  pen.fillRect(at - 1.5, 0, 3, canvas.height);
  pen.beginPath();
  pen.arc(at, canvas.height / 2, 13, 0, 2 * Math.PI);
  pen.fill();
  pen.fillStyle = "#222";
  pen.font = "bold 14px sans-serif";
  pen.textAlign = "center";
  pen.fillText("⇆", at, canvas.height / 2 + 5);
}

function showLegend() {
  const { labels, dense, map } = shown;
  const counts = (values) => values.reduce((sum, value) => ((sum[value] = (sum[value] ?? 0) + 1), sum), []);
  const [inLabels, inDense, inRow] = [labels, dense, map].map((values) => counts(values));
  const present = data.classes.map((_, k) => k).filter((k) => inLabels[k] || inDense[k] || inRow[k]);
  present.sort((a, b) => (inDense[b] ?? 0) - (inDense[a] ?? 0));
  element("legend").replaceChildren(
    ...present.map((k) =>
      make("li", {}, svg("svg", { viewBox: "0 0 1 1", "aria-hidden": "true" }, svg("rect", { width: 1, height: 1, fill: data.classes[k].colour })),
        make("span", { textContent: data.classes[k].name }),
        make("i", { textContent: `${percent(inDense[k] ?? 0, dense.length)} → ${percent(inRow[k] ?? 0, map.length)}` })),
    ),
  );
}

// Point at one panel: the same place is marked in all of them.
function point(event) {
  if (!shown?.panels) return;
  const { scene, row, labels, dense, map, groups } = shown;
  const [height, width] = scene.size;
  const bounds = event.target.getBoundingClientRect();
  const x = Math.min(Math.max(Math.floor(((event.clientX - bounds.left) / bounds.width) * width), 0), width - 1);
  const y = Math.min(Math.max(Math.floor(((event.clientY - bounds.top) / bounds.height) * height), 0), height - 1);
  const k = y * width + x;
  const patch = patchAt(scene, x, y);
  const token = groups[patch];
  restore();
  drawToken(element("panel-merged"), scene, groups, token);
  for (const name of PANELS) drawCross(element(`panel-${name}`), x, y);
  const members = groups.filter((own) => own === token).length;
  element("place").textContent =
    `label: ${className(labels[k])} · dense: ${className(dense[k])} · ${row.title}: ${className(map[k])} · ` +
    `patch ${patch}, in a token of ${members} patch${members === 1 ? "" : "es"}`;
}

function restore() {
  if (!shown?.panels) return;
  PANELS.forEach((name, number) => element(`panel-${name}`).getContext("2d").putImageData(shown.panels[number], 0, 0));
}

function startPointing() {
  for (const name of PANELS) {
    const canvas = element(`panel-${name}`);
    canvas.addEventListener("pointermove", point);
    canvas.addEventListener("pointerleave", restore);
  }
  const wipe = element("wipe");
  const drag = (event) => {
    const bounds = wipe.getBoundingClientRect();
    state.border = Math.min(Math.max((event.clientX - bounds.left) / bounds.width, 0), 1);
    element("border").value = String(Math.round(1000 * state.border));
    paintWipe();
  };
  wipe.addEventListener("pointerdown", (event) => { wipe.setPointerCapture(event.pointerId); drag(event); });
  wipe.addEventListener("pointermove", (event) => { if (event.buttons) drag(event); });
}

function drawCurves() {
  const line = (name, at, unit, level) =>
    chart(element(`${name}-chart`), {
      label: unit,
      x: { label: "cost relative to dense" },
      y: { label: unit },
      level,
      series: data.curves.map((curve) => ({
        ...curve,
        points: curve.points.map((values) => ({ x: values[0], y: values[at], text: `${curve.name}: ${values[at].toFixed(2)} at ${values[0].toFixed(3)} of the cost` })),
      })),
    });
  const { miou } = data.dense;
  line("miou", 1, "mIoU, %", { value: miou, label: `dense ${miou.toFixed(2)}` });
  line("agreement", 2, "pixels with dense's class, %");
}

startTheme();
sortTables();
startChoice();
startPointing();
drawCurves();
show();
