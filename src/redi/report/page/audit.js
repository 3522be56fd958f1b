// The page of `redi audit`: a ranked list, and one view per class at #class=NUMBER.
const percent = (share) => `${Math.round(100 * share)} %`;
const strips = new Map(); // "class/word" -> strip
data.classes.forEach((own, label) => own.words.forEach((word) => strips.set(`${label}/${word.word}`, word.strip)));
const highest = Math.max(data.limit * 2, ...data.classes.map((own) => own.suspicion));
const node = (tag, properties = {}, ...children) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(properties)) made.setAttribute(name, value);
  made.append(...children);
  return made;
};

// A bar from 0 to `most`, with a line at the limit if there is one.
function meter(value, most, text, warm = false, limit = null) {
  const bar = node("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
    node("rect", { class: "bar-fill", width: Math.min((100 * value) / most, 100), height: 10 }));
  if (limit !== null) bar.append(node("line", { class: "limit", x1: (100 * limit) / most, x2: (100 * limit) / most, y1: 0, y2: 10 }));
  return make("span", { className: `meter${warm ? " warm" : ""}` }, bar, make("span", { textContent: text }));
}

const stripOf = (text, alt) => make("img", { src: jpeg(text), alt, decoding: "async", loading: "lazy" });
const suspectsOf = (own) => own.words.filter((word) => word.reason).sort((a, b) => b.suspicion - a.suspicion);
const level = (own) => meter(Math.sqrt(own.suspicion), Math.sqrt(highest), own.suspicion.toFixed(1), own.flagged, Math.sqrt(data.limit));

function listSuspects() {
  const lines = data.order.slice(0, data.listed).map((label, place) => {
    const own = data.classes[label];
    const [first] = suspectsOf(own);
    const link = make("a", { href: `#class=${label}` },
      make("span", { className: "place-number", textContent: `${place + 1}` }),
      make("strong", { textContent: own.title }),
      level(own),
      make("p", { textContent: first ? first.sentence : "" }),
      ...(first ? [stripOf(first.strip, `Typical patches of word ${first.word}`)] : []));
    if (own.flagged) link.className = "flagged";
    return make("li", {}, link);
  });
  if (!lines.length) lines.push(make("li", { className: "note", textContent: "No class has any evidence of a shortcut." }));
  element("ranking").replaceChildren(...lines);
}

function listClasses() {
  const query = element("query").value.toLowerCase();
  let labels = data.order.filter((label) => data.classes[label].title.toLowerCase().includes(query));
  if (element("order").value === "name") labels = labels.sort((a, b) => data.classes[a].title.localeCompare(data.classes[b].title));
  element("shown").textContent = `${labels.length} of ${data.classes.length} classes, with their suspicion`;
  element("list").replaceChildren(...labels.map((label) => {
    const own = data.classes[label];
    return make("li", { className: own.flagged ? "flagged" : "" },
      make("a", { href: `#class=${label}` }, make("strong", { textContent: own.title }), make("i", { textContent: own.suspicion.toFixed(1) })));
  }));
}

// Where a word lies: one cell per patch, dark where it is never.
function heatMap(word) {
  const [rows, columns] = data.grid;
  const canvas = make("canvas", { width: columns, height: rows, role: "img", "aria-label": `Where word ${word.word} lies in the picture` });
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(columns, rows);
  bytes(word.places).forEach((value, k) => {
    const heat = Math.sqrt(value / 255);
    image.data.set([20 + 235 * Math.min(1, 1.4 * heat), 24 + 200 * heat * heat, 48 + 60 * heat * (1 - heat), 255], 4 * k);
  });
  pen.putImageData(image, 0, 0);
  return canvas;
}

function wordCard(word) {
  const heading = make("header", {}, make("strong", { textContent: `word ${word.word}` }));
  if (word.reason) heading.append(make("span", { className: "badge", textContent: word.reason }));
  const facts = [
    ["TF-IDF mass", meter(word.mass, 1, percent(word.mass))],
    ["in the class", meter(word.inside, 1, percent(word.inside), word.reason !== "")],
    ["elsewhere", meter(word.outside, 1, percent(word.outside))],
    ["attention rank", meter(word.rank, 1, `${Math.round(100 * word.rank)}`, word.reason === "unattended")],
    ["attention lift", `${word.lift.toFixed(2)} × the mean patch`],
    ["on the border", percent(word.border)],
    ...(word.reason ? [["suspicion", word.suspicion.toFixed(1)]] : []),
  ];
  return make("div", { className: `audit-word${word.reason ? " suspect" : ""}` }, heading,
    make("div", { className: "seen" }, stripOf(word.strip, `Typical patches of word ${word.word}`), heatMap(word)),
    make("p", { textContent: word.sentence }),
    make("dl", {}, ...facts.flatMap(([name, value]) => [make("dt", { textContent: name }), make("dd", {}, value)])));
}

// A whole picture: the patches of the word stay bright, and each has an outline where it meets another word.
function drawPicture(picture, number) {
  const canvas = make("canvas", { role: "img", "aria-label": `Picture ${number + 1}: the patches of the suspect word are outlined` });
  const image = new Image();
  image.onload = () => {
    const scale = 2;
    [canvas.width, canvas.height] = [scale * image.width, scale * image.height];
    const pen = canvas.getContext("2d");
    const [rows, columns] = data.grid;
    const held = bytes(picture.held);
    const [high, wide] = [canvas.height / rows, canvas.width / columns];
    pen.drawImage(image, 0, 0, canvas.width, canvas.height);
    pen.fillStyle = "rgb(0 0 0 / .4)";
    pen.beginPath(); // one path: where cells meet, nothing is dimmed twice
    held.forEach((is, k) => { if (!is) pen.rect((k % columns) * wide, Math.floor(k / columns) * high, wide + 0.5, high + 0.5); });
    pen.fill();
    pen.strokeStyle = "#ffb066";
    pen.lineWidth = 3;
    held.forEach((is, k) => {
      if (!is) return;
      const [row, column] = [Math.floor(k / columns), k % columns];
      const edges = [
        [row === 0 || !held[k - columns], 0, 0, 1, 0], [row === rows - 1 || !held[k + columns], 0, 1, 1, 1],
        [column === 0 || !held[k - 1], 0, 0, 0, 1], [column === columns - 1 || !held[k + 1], 1, 0, 1, 1],
      ];
      for (const [open, x1, y1, x2, y2] of edges) {
        if (!open) continue;
        pen.beginPath();
        pen.moveTo((column + x1) * wide, (row + y1) * high);
        pen.lineTo((column + x2) * wide, (row + y2) * high);
        pen.stroke();
      }
    });
  };
  image.src = jpeg(picture.jpeg);
  return canvas;
}

function showClass(label) {
  const own = data.classes[label];
  element("class-title").textContent = `${own.title}: ${own.images.toLocaleString("en")} images`;
  element("verdict").textContent = own.sentence;
  element("verdict").className = own.flagged ? "oracle" : "oracle calm";
  const [first] = suspectsOf(own);
  element("pictures-part").hidden = !own.pictures.length;
  if (first) element("pictures-lead").textContent = `Word ${first.word}. ${first.sentence} Its patches are outlined; the rest is dimmed.`;
  element("pictures").replaceChildren(...own.pictures.map(drawPicture));
  const cards = own.words.map(wordCard);
  if (!cards.length) cards.push(make("p", { className: "note", textContent: "No word is more typical of this class than of the others." }));
  element("words").replaceChildren(...cards);
  element("alike-part").hidden = !own.alike.length;
  element("alike").replaceChildren(...own.alike.map((alike) => make("li", {},
    make("a", { href: `#class=${alike.label}`, textContent: data.classes[alike.label].title }),
    meter(alike.overlap, 1, percent(alike.overlap)),
    make("div", { className: "shared" }, ...alike.words.map((word) => {
      const strip = strips.get(`${label}/${word}`) ?? strips.get(`${alike.label}/${word}`);
      return make("span", {}, ...(strip ? [stripOf(strip, "")] : []), `word ${word}`);
    })))));
  const place = data.order.indexOf(label);
  [["previous", place - 1], ["next", place + 1]].forEach(([id, at]) => {
    element(id).hidden = data.order[at] === undefined;
    element(id).href = `#class=${data.order[at]}`;
  });
}

// #class=12 shows a class; anything else is an anchor of the overview.
function follow() {
  const named = new URLSearchParams(location.hash.slice(1)).get("class");
  const label = named === null || named === "" ? -1 : Number(named);
  const isClass = Number.isInteger(label) && label in data.classes;
  element("overview").hidden = isClass;
  element("class-page").hidden = !isClass;
  if (isClass) {
    showClass(label);
    scrollTo(0, 0);
    element("class-title").focus({ preventScroll: true });
  } else if (location.hash) {
    document.getElementById(location.hash.slice(1))?.scrollIntoView();
  }
}

startTheme();
listSuspects();
listClasses();
element("search").addEventListener("input", listClasses);
element("search").addEventListener("submit", (event) => event.preventDefault());
addEventListener("hashchange", follow);
follow();
