"""The analysis stage: figure 2, the explorer and typical patches."""

from pathlib import Path

import numpy as np
import pytest
import torch

from redi.backbone import load_backbone
from redi.images import FolderImages, load_image
from redi.records import artifacts
from redi.report.figures import figure2_shares
from small_run import TRAIN, VAL


def test_analysis_holds_what_the_report_needs(finished: Path) -> None:
    explorer = artifacts.load(finished / "analysis" / "explorer.safetensors")[0]
    assert len(explorer["indices"]) == 8
    assert len(explorer["offsets"]) == 8 * 4 + 1
    jpeg = bytes(explorer["jpegs"][explorer["offsets"][4] : explorer["offsets"][5]].tolist())
    assert load_image(jpeg).size == (112, 112)
    assert explorer["source/redi_mass"].shape == (8, 196)
    figure = artifacts.load(finished / "analysis" / "figure2.safetensors")[0]
    assert {f"frequency/block{k}" for k in (1, 2, 3)} <= set(figure)
    assert int(figure["frequency/block3"].sum()) == 4 * TRAIN * 196
    assert int(figure["validation/frequency"].sum()) == 4 * VAL * 196
    scores = artifacts.load(finished / "scores" / "redi_mass.safetensors")[0]["scores"]
    mass = float(figure["validation/mass/redi_mass"].sum())
    assert mass == pytest.approx(float(scores.double().sum()), rel=1e-9)
    typical = artifacts.load(finished / "analysis" / "typical.safetensors")[0]
    assert len(typical["offsets"]) == 16 + 1


@pytest.fixture(scope="module")
def counted(small_data: Path, finished: Path) -> dict[str, list[float]]:
    """The right panel of Figure 2, counted patch by patch from the images: how often each word of the last block's
    own codebook is assigned, and the sums of two scores over its patches."""
    backbone, images = load_backbone(small_data / "backbone"), FolderImages(small_data / "val")
    codebook = artifacts.load(finished / "analysis" / "codebooks.safetensors")[0]["block3/centroids"]
    scores = {
        row: artifacts.load(finished / "scores" / f"{row}.safetensors")[0]["scores"].tolist()
        for row in ("redi_mass", "tfidf")
    }
    sums = {name: [0.0] * len(codebook) for name in ("frequency", *scores)}
    for index in range(len(images.labels)):
        with torch.no_grad():
            pixels = backbone.preprocessing(images.load(index))[None]
            patches = backbone.encode(backbone.embed(pixels))[0, backbone.prefix :]
        for patch, feature in enumerate(patches):
            word = max(range(len(codebook)), key=lambda k: float(feature @ codebook[k]))
            sums["frequency"][word] += 1
            for row in scores:
                sums[row][word] += scores[row][index][patch]
    return sums


@pytest.mark.parametrize("word", range(16))
def test_frequency_and_mass_of_each_word_equal_the_naive_count(
    finished: Path, counted: dict[str, list[float]], word: int
) -> None:
    figure = artifacts.load(finished / "analysis" / "figure2.safetensors")[0]
    assert int(figure["validation/frequency"][word]) == counted["frequency"][word]
    for row in ("redi_mass", "tfidf"):
        assert float(figure[f"validation/mass/{row}"][word]) == pytest.approx(counted[row][word], rel=1e-9)


def test_the_right_panel_shows_the_words_by_frequency_with_their_own_mass(
    finished: Path, counted: dict[str, list[float]]
) -> None:
    order = sorted(range(16), key=lambda word: -counted["frequency"][word])
    shown = figure2_shares(finished)
    for name, shares in (("frequency", shown.frequency), ("redi_mass", shown.mass)):
        total = sum(counted[name])
        assert shares == pytest.approx([100 * counted[name][word] / total for word in order], rel=1e-9)


def test_zipf_and_the_correlations_are_recorded(finished: Path, counted: dict[str, list[float]]) -> None:
    """Against numpy, over the words that occur: Spearman's correlation is Pearson's of the mean ranks."""
    figure, notes = figure2_shares(finished), figure2_shares(finished).notes
    assert set(notes.zipf) == {"block1", "block2", "block3"}
    for block, counts in figure.blocks:
        fit, log_rank = notes.zipf[f"block{block}"], np.log(np.arange(1, len(counts) + 1))
        slope, _ = np.polyfit(log_rank, np.log(counts), 1)
        assert fit.slope == pytest.approx(slope)
        assert fit.r2 == pytest.approx(np.corrcoef(log_rank, np.log(counts))[0, 1] ** 2)
        assert fit.words == len(counts)
    occurring = [word for word, count in enumerate(counted["frequency"]) if count]
    for row in ("redi_mass", "tfidf"):
        columns = [[counted[name][word] for word in occurring] for name in ("frequency", row)]
        ranks = [
            [np.mean([other < one for other in column]) + np.mean([other <= one for other in column]) for one in column]
            for column in columns
        ]
        assert notes.spearman[row] == pytest.approx(np.corrcoef(ranks)[0, 1], abs=1e-6)
