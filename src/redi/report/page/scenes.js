// The parts of a scene as arrays, and how they are painted. All painting is in pixels of the label map.
const VOID = 255;
const COLOURS = data.classes.map(({ colour }) => rgb(colour));
const BETTER = [64, 201, 120], WORSE = [255, 70, 70], OTHER = [255, 196, 0];

// Any CSS colour as three numbers, read back from a canvas.
function rgb(colour) {
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  pen.fillStyle = colour;
  pen.fillRect(0, 0, 1, 1);
  return [...pen.getImageData(0, 0, 1, 1).data.slice(0, 3)];
}

async function pixelsOf(source, width, height, smooth) {
  const image = new Image();
  image.src = source;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width, height];
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.imageSmoothingEnabled = smooth;
  pen.drawImage(image, 0, 0, width, height);
  return pen.getImageData(0, 0, width, height).data;
}

// Arrays are decoded when they are first needed.
const decoded = new Map();
function once(key, decode) {
  if (!decoded.has(key)) decoded.set(key, decode());
  return decoded.get(key);
}

function pictureOf(scene) {
  const [height, width] = scene.size;
  return once(`${scene.name}/picture`, () => pixelsOf(jpeg(scene.picture), width, height, true));
}

function classMap(scene, row) {
  const [height, width] = scene.size;
  const text = row === null ? scene.labels : scene.maps[row];
  return once(`${scene.name}/map/${row}`, async () => {
    const colours = await pixelsOf(`data:image/png;base64,${text}`, width, height, false);
    return Uint8Array.from({ length: width * height }, (_, k) => colours[4 * k]);
  });
}

const groupsOf = (scene, row) => once(`${scene.name}/groups/${row.row}~${row.cost}`, () => shorts(scene.groups[`${row.row}~${row.cost}`]));

function put(canvas, scene, colourAt) {
  const [height, width] = scene.size;
  [canvas.width, canvas.height] = [width, height];
  const pen = canvas.getContext("2d", { willReadFrequently: true }); // pointing at a panel puts its pixels back
  const image = pen.createImageData(width, height);
  for (let k = 0; k < width * height; k++) {
    const [red, green, blue] = colourAt(k);
    image.data.set([red, green, blue, 255], 4 * k);
  }
  pen.putImageData(image, 0, 0);
}

const grey = (picture, k) => 0.3 * picture[4 * k] + 0.59 * picture[4 * k + 1] + 0.11 * picture[4 * k + 2];
const blend = (below, above, share) => [0, 1, 2].map((c) => below[c] + (above[c] - below[c]) * share);

// A class map over the picture. Borders between classes have their full colour.
function colourOfMap(scene, picture, map, strength) {
  const [height, width] = scene.size;
  return (k) => {
    const level = grey(picture, k);
    const below = blend([level, level, level], picture.subarray(4 * k, 4 * k + 3), 0.35);
    if (map[k] === VOID) return blend(below, [18, 18, 22], 0.72);
    const border = (k % width < width - 1 && map[k] !== map[k + 1]) || (k < width * (height - 1) && map[k] !== map[k + width]);
    return blend(below, COLOURS[map[k]] ?? [255, 255, 255], border ? Math.min(1, strength + 0.38) : strength);
  };
}

// Where a row's class is not dense's. Returns the painter and the counts of [better, worse, other] pixels.
function changes(scene, picture, labels, dense, map) {
  const counts = [0, 0, 0];
  const kind = new Int8Array(map.length).fill(-1);
  for (let k = 0; k < map.length; k++) {
    if (map[k] === dense[k]) continue;
    kind[k] = map[k] === labels[k] ? 0 : dense[k] === labels[k] ? 1 : 2;
    counts[kind[k]]++;
  }
  const paint = (k) => {
    const level = 30 + 0.42 * grey(picture, k);
    return kind[k] < 0 ? [level, level, level] : [BETTER, WORSE, OTHER][kind[k]];
  };
  return { paint, counts };
}

// The patch of a pixel: patches divide the picture evenly.
const patchAt = (scene, x, y) => {
  const [height, width] = scene.size;
  const [rows, columns] = scene.grid;
  return Math.min(Math.floor((y * rows) / height), rows - 1) * columns + Math.min(Math.floor((x * columns) / width), columns - 1);
};

// Every token in the mean colour of all its patches with a tint of its own, and borders between tokens. A patch alone
// shows the picture.
function drawMerged(canvas, scene, picture, groups) {
  const [height, width] = scene.size;
  const [rows, columns] = scene.grid;
  const sums = new Map();
  const patches = new Map();
  groups.forEach((token) => patches.set(token, (patches.get(token) ?? 0) + 1));
  const tokenAt = (k) => groups[patchAt(scene, k % width, Math.floor(k / width))];
  for (let k = 0; k < width * height; k++) {
    const token = tokenAt(k);
    const sum = sums.get(token) ?? [0, 0, 0, 0];
    for (let c = 0; c < 3; c++) sum[c] += picture[4 * k + c];
    sum[3]++;
    sums.set(token, sum);
  }
  const tints = new Map([...patches.keys()].map((token) => [token, rgb(`hsl(${(token * 137.508) % 360} 75% 60%)`)]));
  put(canvas, scene, (k) => {
    const token = tokenAt(k);
    if (patches.get(token) === 1) return picture.subarray(4 * k, 4 * k + 3);
    const sum = sums.get(token);
    return blend([sum[0] / sum[3], sum[1] / sum[3], sum[2] / sum[3]], tints.get(token), 0.38);
  });
  const pen = canvas.getContext("2d");
  const [across, down] = [width / columns, height / rows];
  pen.strokeStyle = "rgb(255 255 255 / .85)";
  pen.lineWidth = Math.max(1, width / 480);
  pen.beginPath();
  for (let patch = 0; patch < rows * columns; patch++) {
    const [row, column] = [Math.floor(patch / columns), patch % columns];
    if (column + 1 < columns && groups[patch] !== groups[patch + 1]) {
      pen.moveTo((column + 1) * across, row * down);
      pen.lineTo((column + 1) * across, (row + 1) * down);
    }
    if (row + 1 < rows && groups[patch] !== groups[patch + columns]) {
      pen.moveTo(column * across, (row + 1) * down);
      pen.lineTo((column + 1) * across, (row + 1) * down);
    }
  }
  pen.stroke();
  return patches.size;
}

// The patches of the pointed token, bright.
function drawToken(canvas, scene, groups, token) {
  const [height, width] = scene.size;
  const [rows, columns] = scene.grid;
  const [across, down] = [width / columns, height / rows];
  const pen = canvas.getContext("2d");
  pen.fillStyle = "rgb(0 229 255 / .45)";
  groups.forEach((own, patch) => {
    if (own === token) pen.fillRect((patch % columns) * across, Math.floor(patch / columns) * down, across, down);
  });
}

function drawCross(canvas, x, y) {
  const pen = canvas.getContext("2d");
  pen.strokeStyle = "#fff";
  pen.lineWidth = Math.max(1.5, canvas.width / 260);
  pen.shadowColor = "#000";
  pen.shadowBlur = 4;
  pen.beginPath();
  pen.arc(x, y, canvas.width / 48, 0, 2 * Math.PI);
  pen.stroke();
  pen.shadowBlur = 0;
}
