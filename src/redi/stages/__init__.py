"""The stages of a run: each reads artefacts and images, writes artefacts, and is skipped if current."""
