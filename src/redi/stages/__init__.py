"""The stages of a run. Each reads images and artefacts, writes artefacts, and is skipped if these are current."""

#: What each stage does, in the order in which the stages run. The command line reads it without a heavy import.
HELP = {
    "vocabulary": "Fit the visual words and store the classifier's features.",
    "tfidf": "Count the words of the corpus and build the TF-IDF table.",
    "probe": "Train the linear classifier on the dense features.",
    "score": "Score every patch of the validation images.",
    "evaluate": "Predict every validation image, dense and reduced.",
    "analysis": "Record what the figures and the report need.",
}
