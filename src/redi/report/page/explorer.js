// The grid of images and its filters.
const filters = () => ({
  classifier: element("classifier").value,
  row: element("row").value,
  kind: element("kind").value,
  label: element("class").value,
  other: element("other").value,
  least: Number(element("disagreement").value) / 100,
  order: element("order").value,
});

let listed = [];

function startExplorer() {
  const rows = data.rows.map((row) => [row.name, row.title]);
  fill(element("classifier"), data.classifiers.map((name) => [name, name]));
  fill(element("row"), rows, data.main);
  fill(element("other"), rows, data.main === "tfidf" ? "mass" : "tfidf");
  const present = [...new Set(data.images.map((image) => image.label))];
  const classes = present.map((label) => [String(label), data.classes[label]]);
  classes.sort((a, b) => a[1].localeCompare(b[1]));
  fill(element("class"), [["", `all ${present.length} shown here`], ...classes]);
  element("filters").addEventListener("input", listImages);
  element("filters").addEventListener("submit", (event) => event.preventDefault());
  listImages();
}

function listImages() {
  const chosen = filters();
  element("disagreement-value").textContent = `${Math.round(100 * chosen.least)} %`;
  const matches = data.images
    .map((image) => ({
      image,
      kind: outcome(image, chosen.classifier, chosen.row),
      differs: disagreement(image, chosen.row, chosen.other, data.budget),
    }))
    .filter(({ image, kind, differs }) =>
      (!chosen.kind || kind === chosen.kind) &&
      (!chosen.label || String(image.label) === chosen.label) &&
      differs >= chosen.least - 1e-9);
  if (chosen.order === "disagreement") matches.sort((a, b) => b.differs - a.differs);
  listed = matches.map(({ image }) => image);
  element("grid").replaceChildren(...matches.map(tile));
  if (!matches.length) element("grid").append(make("p", { className: "note", textContent: "No image matches." }));
  element("shown").textContent = `${matches.length} of ${data.images.length} images`;
}

function tile({ image, kind, differs }) {
  const name = data.classes[image.label];
  const node = make(
    "button",
    { type: "button", className: "tile", title: image.name },
    make("img", { src: jpeg(image.crops[0]), alt: `${name}, ${outcomes[kind]}`, decoding: "async", width: 112, height: 112 }),
    make("span", { textContent: name }),
    make("span", { className: `dot ${kind}`, textContent: outcomes[kind] }),
    make("span", { className: "note", textContent: `${Math.round(100 * differs)} % differ` }),
  );
  node.dataset.index = image.index;
  node.addEventListener("click", () => show(image.index, element("row").value));
  return node;
}
