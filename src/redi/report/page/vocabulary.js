// The visual words with their typical patches, counts and classes.
const PAGE = 60;
let wordsShown = PAGE;

function startVocabulary() {
  const classes = data.classes.map((name, label) => [String(label), name]);
  classes.sort((a, b) => a[1].localeCompare(b[1]));
  fill(element("word-class"), [["", "all classes"], ...classes]);
  element("word-filters").addEventListener("input", () => {
    wordsShown = PAGE;
    listWords();
  });
  element("word-filters").addEventListener("submit", (event) => event.preventDefault());
  element("more-words").addEventListener("click", () => {
    wordsShown += PAGE;
    listWords();
  });
  element("word-close").addEventListener("click", () => element("word").close());
  element("word").addEventListener("close", () => {
    if (location.hash.startsWith("#word=")) history.replaceState(null, "", "#vocabulary");
  });
  listWords();
}

function orderedWords() {
  const { frequency, idf } = data.vocabulary;
  const label = element("word-class").value;
  if (label) return data.class_words[Number(label)].map(([word, value]) => [word, value]);
  const words = frequency.map((_, word) => word);
  const orders = {
    frequency: (a, b) => frequency[b] - frequency[a],
    rare: (a, b) => frequency[a] - frequency[b],
    idf: (a, b) => idf[b] - idf[a],
    number: (a, b) => a - b,
  };
  return words.sort(orders[element("word-order").value]).map((word) => [word, null]);
}

function listWords() {
  const words = orderedWords();
  element("word-order").disabled = element("word-class").value !== "";
  const cards = words.slice(0, wordsShown).map(([word, value]) => wordCard(word, value));
  if (!cards.length) cards.push(make("p", { className: "note", textContent: "No word is more typical of this class than of the others." }));
  element("word-grid").replaceChildren(...cards);
  element("more-words").hidden = words.length <= wordsShown;
}

const thumbs = (word) =>
  make("img", { className: "thumbs", decoding: "async", src: jpeg(data.vocabulary.strips[word]), alt: `Typical patches of word ${word}`, width: data.vocabulary.strip[0], height: data.vocabulary.strip[1] });

function wordNumbers(word) {
  const { frequency, df, idf } = data.vocabulary;
  return `${frequency[word].toLocaleString("en")} patches, in ${df[word].toLocaleString("en")} images, idf ${idf[word].toFixed(2)}`;
}

function wordCard(word, value) {
  const card = make(
    "button",
    { type: "button", className: "word-card" },
    make("strong", { textContent: `word ${word}` + (value === null ? "" : `, TF-IDF ${value.toFixed(3)}`) }),
    thumbs(word),
    make("span", { className: "numbers", textContent: wordNumbers(word) }),
    make("span", { className: "chips" }, ...data.vocabulary.classes[word].slice(0, 3).map(([label]) => make("span", { textContent: data.classes[label] }))),
  );
  card.dataset.word = word;
  card.addEventListener("click", () => openWord(word));
  return card;
}

function openWord(word) {
  if (!(word in data.vocabulary.frequency)) return false;
  element("word-title").textContent = `Visual word ${word}`;
  const rows = data.vocabulary.classes[word].map(([label, value]) =>
    make("tr", {}, make("td", { textContent: data.classes[label] }), make("td", { textContent: value.toFixed(4) })));
  element("word-body").replaceChildren(
    thumbs(word),
    make("p", { className: "numbers", textContent: wordNumbers(word) }),
    make("table", {}, make("caption", { textContent: "Classes by TF-IDF" }), make("tbody", {}, ...rows)),
  );
  if (!element("word").open) element("word").showModal();
  return true;
}
