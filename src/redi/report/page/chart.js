// Line charts as SVG, with a legend that hides and shows lines and a text for the point nearest to the pointer.
const SVG = "http://www.w3.org/2000/svg";
const PALETTE = ["#3182bd", "#e6550d", "#31a354", "#9467bd", "#d62728", "#8c6d31", "#e377c2", "#17a2b8", "#7f8c1f", "#6b6ecf"];
const DASHES = { solid: "", dashed: "6 4", dotted: "2 3" };

function svg(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// A scale from values to pixels, with its ticks.
function scale(values, log, from, to) {
  const map = log ? Math.log10 : (value) => value;
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (!log) {
    const margin = (high - low || 1) * 0.04;
    [low, high] = [low - margin, high + margin];
  }
  const [first, last] = [map(low), map(high)];
  const place = (value) => from + ((map(value) - first) / (last - first || 1)) * (to - from);
  const ticks = [];
  if (log) {
    for (let power = Math.ceil(first - 1e-9); power <= last + 1e-9; power++) ticks.push(10 ** power);
    if (ticks.length < 2) ticks.splice(0, 2, low, high);
  } else {
    const rough = (high - low) / 6;
    const base = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((k) => k * base).find((size) => size >= rough);
    for (let at = Math.ceil(low / step) * step; at <= high; at += step) ticks.push(+at.toPrecision(12));
  }
  return { place, ticks };
}

function chart(place, { series, x, y, level, label }) {
  const width = Math.min(Math.max(place.clientWidth, 320), 640);
  const [height, left, bottom, top] = [Math.round(width * 0.6), 62, 44, 12];
  const hidden = new Set();
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const tip = make("div", { className: "tip", hidden: true });
  const all = series.flatMap((line) => line.points);
  const across = scale(all.map((point) => point.x), x.log, left, width - 12);
  const levels = level ? [level.value] : [];
  const up = scale([...all.map((point) => point.y), ...levels], y.log, height - bottom, top);

  function draw() {
    root.replaceChildren();
    for (const tick of across.ticks) {
      const at = across.place(tick);
      root.append(
        svg("line", { x1: at, x2: at, y1: top, y2: height - bottom, class: "rule" }),
        svg("text", { x: at, y: height - bottom + 16, "text-anchor": "middle" }, String(tick)),
      );
    }
    for (const tick of up.ticks) {
      const at = up.place(tick);
      root.append(
        svg("line", { x1: left, x2: width - 12, y1: at, y2: at, class: "rule" }),
        svg("text", { x: left - 6, y: at + 4, "text-anchor": "end" }, tick.toLocaleString("en")),
      );
    }
    const middle = (height - bottom + top) / 2;
    root.append(
      svg("text", { x: (left + width) / 2, y: height - 8, "text-anchor": "middle" }, x.label),
      svg("text", { x: 14, y: middle, "text-anchor": "middle", transform: `rotate(-90 14 ${middle})` }, y.label),
    );
    if (level) {
      const at = up.place(level.value);
      root.append(
        svg("line", { x1: left, x2: width - 12, y1: at, y2: at, class: "axis", "stroke-dasharray": "1 3" }),
        svg("text", { x: left + 4, y: at - 5 }, level.label),
      );
    }
    series.forEach((line, number) => {
      if (hidden.has(number)) return;
      const colour = PALETTE[(line.hue ?? number) % PALETTE.length];
      if (!line.dots) {
        const path = line.points.map((p, k) => `${k ? "L" : "M"}${across.place(p.x).toFixed(1)} ${up.place(p.y).toFixed(1)}`);
        root.append(svg("path", { d: path.join(""), fill: "none", stroke: colour, "stroke-width": 2, "stroke-dasharray": DASHES[line.style ?? "solid"] }));
      }
      if (line.dots || line.points.length < 40) {
        for (const p of line.points) {
          root.append(svg("circle", { cx: across.place(p.x), cy: up.place(p.y), r: line.dots ? 2 : 3.5, fill: colour }));
        }
      }
    });
  }

  function near(event) {
    const bounds = root.getBoundingClientRect();
    const [px, py] = [((event.clientX - bounds.left) / bounds.width) * width, ((event.clientY - bounds.top) / bounds.height) * height];
    let best = null;
    series.forEach((line, number) => {
      if (hidden.has(number)) return;
      for (const point of line.points) {
        const distance = Math.hypot(across.place(point.x) - px, up.place(point.y) - py);
        if (!best || distance < best.distance) best = { distance, line, point };
      }
    });
    tip.hidden = !best || best.distance > 40;
    if (tip.hidden) return;
    tip.textContent = best.point.text ?? `${best.line.name}: ${best.point.x}, ${best.point.y}`;
    const [tipLeft, tipTop] = [(across.place(best.point.x) / width) * bounds.width, (up.place(best.point.y) / height) * bounds.height];
    tip.style.left = `${Math.min(tipLeft + 12, Math.max(bounds.width - 220, 0))}px`;
    tip.style.top = `${tipTop + 12}px`;
  }
  root.addEventListener("pointermove", near);
  root.addEventListener("pointerleave", () => (tip.hidden = true));

  const legend = make("div", { className: "legend" });
  series.forEach((line, number) => {
    const colour = PALETTE[(line.hue ?? number) % PALETTE.length];
    const sample = svg("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" },
      line.dots
        ? svg("circle", { cx: 13, cy: 5, r: 3, fill: colour })
        : svg("line", { x1: 0, x2: 26, y1: 5, y2: 5, stroke: colour, "stroke-width": 3, "stroke-dasharray": DASHES[line.style ?? "solid"] }));
    const button = make("button", { type: "button", "aria-pressed": "true" }, sample, line.name);
    button.addEventListener("click", () => {
      hidden.has(number) ? hidden.delete(number) : hidden.add(number);
      button.setAttribute("aria-pressed", String(!hidden.has(number)));
      draw();
    });
    legend.append(button);
  });
  draw();
  place.replaceChildren(root, tip, legend);
}
