// The operator's role assignment, as in redi.reduction: ranks are stable, fractions round half up.
const ROLES = ["keep", "merge", "compress"];
const SLACK = 1e-9;

function counts(budget) {
  const rounded = (fraction) => Math.floor(fraction * patches + 0.5 + SLACK);
  const keep = rounded(budget.keep);
  const merge = keep ? Math.min(rounded(budget.merge), patches - keep) : 0;
  return { keep, merge, compress: patches - keep - merge };
}

function ranking(scores) {
  return Array.from(scores.keys()).sort((a, b) => scores[b] - scores[a]);
}

function assign(scores, budget) {
  const order = ranking(scores);
  const sizes = counts(budget);
  const rank = new Uint16Array(patches);
  const role = new Uint8Array(patches);
  order.forEach((patch, place) => {
    rank[patch] = place;
    role[patch] = place < sizes.keep ? 0 : place < sizes.keep + sizes.merge ? 1 : 2;
  });
  const leaders = new Map();
  const compressed = order.slice(sizes.keep + sizes.merge);
  for (const patch of compressed) {
    if (!leaders.has(cellOf(patch))) leaders.set(cellOf(patch), patch);
  }
  if (compressed.length) {
    for (let cell = 0; cell < data.budget.cells ** 2; cell++) {
      if (!leaders.has(cell)) leaders.set(cell, compressed[0]);
    }
  }
  return { rank, role, leaders, sizes, tokens: sizes.keep + leaders.size };
}

function cellOf(patch) {
  const [rows, columns] = data.grid;
  const cells = data.budget.cells;
  const down = Math.floor((Math.floor(patch / columns) * cells) / rows);
  return down * cells + Math.floor(((patch % columns) * cells) / columns);
}

// The share of the patches kept by one score that another score does not keep.
function disagreement(image, first, second, budget) {
  const kept = (row) => new Set(ranking(arrays(image).scores[row]).slice(0, counts(budget).keep));
  const [own, other] = [kept(first), kept(second)];
  if (!own.size) return 0;
  return [...own].filter((patch) => !other.has(patch)).length / own.size;
}

function blockCost(tokens) {
  const { prefix, projections, mlp, pairs } = data.geometry;
  const cost = (count) => count * (projections + mlp) + count ** 2 * pairs;
  return cost(prefix + tokens) / cost(prefix + patches);
}
