// The arithmetic of a score for every patch of an image, from the TF-IDF of words to the last min-max, as in
// redi.tfidf, redi.views and redi.score. The description of a patch shows each of these numbers.
const EPSILON = 1e-8;

function range(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
  return { low, high };
}

// Eq. norm01 of one value.
const normalised = (value, { low, high }) => (high - low > EPSILON ? (value - low) / (high - low + EPSILON) : 0);

// Where the centres of the reference crop's patches lie in a view along one axis: (the two nearest patches with their
// weights), or null outside the view.
function nearest(count, origin, extent, flip, first, length) {
  return Array.from({ length: count }, (_, k) => {
    let offset = first + ((k + 0.5) * length) / count - origin;
    if (offset < 0 || offset > extent) return null;
    if (flip) offset = extent - offset;
    const place = Math.min(Math.max((offset * count) / extent - 0.5, 0), count - 1);
    const low = Math.floor(place);
    return [[low, 1 - (place - low)], [low + 1, place - low]].filter(([, weight]) => weight > 0);
  });
}

// Of each patch of the reference crop: the patches of a view at its place with their weights; null if not covered.
function samples(image, number) {
  const [rows, columns] = data.grid;
  const [left, top, width, height, flip] = image.views[number];
  const [firstLeft, firstTop, firstWidth, firstHeight] = image.views[0];
  const down = nearest(rows, top, height, 0, firstTop, firstHeight);
  const across = nearest(columns, left, width, flip, firstLeft, firstWidth);
  return Array.from({ length: patches }, (_, patch) => {
    const [y, x] = [down[Math.floor(patch / columns)], across[patch % columns]];
    if (!y || !x) return null;
    return y.flatMap(([row, share]) => x.map(([column, part]) => ({ patch: row * columns + column, weight: share * part })));
  });
}

// The corpus term: per view TF-IDF on its own grid (``lookups``) with its range and, aligned, the ``terms`` and the
// value of each patch; then 0.8 of the mean plus 0.2 of the maximum over the views, and its range.
const corpusCache = new Map();
function corpusSteps(image) {
  if (!corpusCache.has(image)) {
    const { words } = arrays(image);
    const { table } = factorsOf(image.label);
    const views = image.views.map((_, number) => {
      const raw = Array.from(words.subarray(number * patches, (number + 1) * patches), (word) => table[word]);
      const span = range(raw);
      const lookups = raw.map((value) => normalised(value, span));
      const terms = samples(image, number);
      const aligned = terms.map((entries) => entries && entries.reduce((sum, { patch, weight }) => sum + weight * lookups[patch], 0));
      return { raw, span, lookups, terms, aligned };
    });
    const mixed = Array.from({ length: patches }, (_, patch) => {
      const values = views.map(({ aligned }) => aligned[patch]).filter((value) => value !== null);
      const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
      const most = Math.max(...values);
      return { mean, most, value: data.mean_weight * mean + (1 - data.mean_weight) * most };
    });
    corpusCache.set(image, { views, mixed, span: range(mixed.map(({ value }) => value)) });
  }
  return corpusCache.get(image);
}

// The product of TF-IDF with an attention score, and its range over the image.
function productSteps(image, attention) {
  const { mixed, span } = corpusSteps(image);
  const factor = arrays(image).scores[attention];
  const products = mixed.map(({ value }, patch) => normalised(value, span) * factor[patch]);
  return { products, span: range(products) };
}

const factorCache = new Map();
function factorsOf(label) {
  if (!factorCache.has(label)) {
    const { words, ...parts } = data.factors[label];
    const places = shorts(words);
    const spread = (text) => {
      const whole = new Float32Array(data.vocabulary.frequency.length);
      floats(text).forEach((value, k) => (whole[places[k]] = value));
      return whole;
    };
    factorCache.set(label, Object.fromEntries(Object.entries(parts).map(([name, text]) => [name, spread(text)])));
  }
  return factorCache.get(label);
}

// Four digits that mean something, without an exponent unless a number is tiny.
function digits(value) {
  if (value === 0 || Math.abs(value) < 1e-12) return "0";
  if (Math.abs(value) < 1e-5) return value.toExponential(3);
  return value.toFixed(Math.max(0, 3 - Math.floor(Math.log10(Math.abs(value)))));
}
