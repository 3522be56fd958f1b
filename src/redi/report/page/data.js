// The data of the page. Base64 strings in it become typed arrays (little-endian, as written).
const data = JSON.parse(document.getElementById("data").textContent);
const patches = data.grid[0] * data.grid[1];

const element = (id) => document.getElementById(id);
const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
const shorts = (text) => new Uint16Array(bytes(text).buffer);
const floats = (text) => new Float32Array(bytes(text).buffer);
const halves = (text) => Float32Array.from(shorts(text), half);
const jpeg = (text) => `data:image/jpeg;base64,${text}`;

// IEEE half precision, exactly: scores decide roles, so nothing may be rounded.
function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 0) return (sign * fraction) / 2 ** 24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * 2 ** (exponent - 15) * (1 + fraction / 1024);
}

// The arrays of an image, unpacked when they are first used.
const unpacked = new Map();
function arrays(image) {
  if (!unpacked.has(image)) {
    const scores = {}, destinations = {};
    for (const row of data.rows) {
      scores[row.name] = halves(image.scores[row.name]);
      destinations[row.name] = shorts(image.destinations[row.name]);
    }
    unpacked.set(image, {
      scores,
      destinations,
      words: shorts(image.words),
      merges: image.merges && { block: bytes(image.merges.block), into: shorts(image.merges.into) },
    });
  }
  return unpacked.get(image);
}

// An element with properties and children; text is never parsed as markup.
function make(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

function fill(select, options, chosen) {
  select.replaceChildren(
    ...options.map(([value, text]) => make("option", { value, textContent: text })),
  );
  if (chosen !== undefined) select.value = chosen;
}

const outcome = (image, classifier, row) => {
  const truth = image.truth[classifier];
  const dense = image.top5[classifier].dense[0][0] === truth;
  const reduced = image.top5[classifier][row][0][0] === truth;
  if (dense) return reduced ? "right" : "lost";
  return reduced ? "rescued" : "wrong";
};
const outcomes = { rescued: "rescued", lost: "lost", right: "both right", wrong: "both wrong" };
const rowOf = (name) => data.rows.find((row) => row.name === name);
const titleOf = (name) => rowOf(name).title;
