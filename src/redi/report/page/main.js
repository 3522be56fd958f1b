// Start everything, draw the charts, follow links into the page.
function drawCharts() {
  const { blocks, frequency, mass } = data.figure2;
  chart(element("frequency-chart"), {
    label: "Word frequency by rank",
    x: { label: "rank of the word", log: true },
    y: { label: "patches assigned", log: true },
    series: blocks.map(({ block, counts: values }) => ({
      name: `block ${block}`,
      points: values.map((value, k) => ({ x: k + 1, y: value, text: `block ${block}, rank ${k + 1}: ${value.toLocaleString("en")} patches` })),
    })),
  });
  const point = (kind) => (value, k) => ({ x: k + 1, y: value, text: `word at rank ${k + 1}: ${value.toFixed(3)} % of ${kind}` });
  chart(element("mass-chart"), {
    label: "Score mass against assignment frequency",
    x: { label: "word, by validation frequency", log: true },
    y: { label: "share, %" },
    series: [
      { name: "assignments", points: frequency.map(point("the assignments")) },
      { name: "REDI score mass", dots: true, points: mass.map(point("the score mass")) },
    ],
  });
  for (const { classifier, dense, lines } of data.curves) {
    chart(element(`curves-${classifier}`), {
      label: `Top-1 against cost, ${classifier} classifier`,
      x: { label: "cost relative to dense" },
      y: { label: "Top-1, %" },
      level: { value: dense, label: `dense ${dense.toFixed(1)}` },
      series: lines.map((line) => ({
        ...line,
        points: [
          ...line.points.map(([x, y, tokens, low, high]) => ({
            x,
            y,
            text: `${line.name}: ${y.toFixed(1)} % (${low.toFixed(1)} to ${high.toFixed(1)}) at ${x.toFixed(3)} of the cost, ${tokens} tokens`,
          })),
          { x: 1, y: dense, text: `dense: ${dense.toFixed(1)} %` },
        ],
      })),
    });
  }
}

// #image=12&score=redi_mass and #word=7 open what they name; anything else is an anchor.
function follow() {
  const link = new URLSearchParams(location.hash.slice(1));
  if (!link.get("image")) element("viewer").close();
  if (!link.get("word")) element("word").close();
  if (link.get("image")) {
    if (!openImage(Number(link.get("image")), link.get("score"))) {
      element("shown").textContent = `Image ${link.get("image")} is not among the images of this page.`;
      element("explorer").scrollIntoView();
    }
  } else if (link.get("word")) {
    openWord(Number(link.get("word")));
  }
}

startTheme();
sortTables();
drawCharts();
startExplorer();
startViewer();
startMerges();
drawHero();
startVocabulary();
addEventListener("hashchange", follow);
follow();
