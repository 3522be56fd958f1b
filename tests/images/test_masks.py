"""Masks of objects: what counts as the object, where it lies in the crop, and mistakes."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from redi.errors import CorpusError, ImageError
from redi.images.masks import object_share, read_mask, shares_of
from redi.images.preprocessing import Preprocessing
from redi.views import View

PREPROCESSING = Preprocessing(256, 224, (0.5,) * 3, (0.5,) * 3)


def test_object_share_by_hand() -> None:
    # The object fills the left half of a 256 px picture; the crop begins at 16, so of 14 columns
    # of 16 px the first seven are full.
    mask = Image.new("1", (256, 256))
    mask.paste(1, (0, 0, 128, 256))
    share = object_share(mask, 256, 224, (14, 14)).view(14, 14)
    assert share[:, :7].eq(1).all()
    assert share[:, 7:].eq(0).all()


@pytest.mark.parametrize("mode", ["1", "L", "P"])
def test_every_value_but_zero_is_the_object(tmp_path: Path, mode: str) -> None:
    values = np.zeros((6, 8), dtype=np.uint8)
    values[2:4, 1:5] = 1 if mode == "1" else 7
    picture = Image.fromarray(values.astype(bool)) if mode == "1" else Image.fromarray(values)
    if mode == "P":
        picture.putpalette([0, 0, 0] * 256)  # every number looks black
    picture.save(tmp_path / "mask.png")
    read = np.array(read_mask(tmp_path / "mask.png"))
    assert set(np.unique(read)) == {0, 255}
    assert ((read > 0) == (values > 0)).all()


def test_shares_of_named_images(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    mask = Image.new("L", (256, 256))
    mask.paste(9, (0, 0, 128, 256))
    mask.save(tmp_path / "cat" / "a.png")
    view = View((16, 16, 224, 224))
    shares = shares_of(tmp_path, ["cat/a.jpg"], [view], PREPROCESSING, (14, 14))
    assert shares.shape == (1, 196)
    assert shares.mean().item() == 0.5
    with pytest.raises(CorpusError, match=r"The image cat/b\.jpg has no mask: there is no .*b\.png"):
        shares_of(tmp_path, ["cat/b.jpg"], [view], PREPROCESSING, (14, 14))
    with pytest.raises(ImageError, match="other proportions than its image"):
        shares_of(tmp_path, ["cat/a.jpg"], [View((60, 16, 224, 224))], PREPROCESSING, (14, 14))
    with pytest.raises(CorpusError, match="no folder of masks"):
        shares_of(tmp_path / "nothing", ["cat/a.jpg"], [view], PREPROCESSING, (14, 14))
    Image.new("RGB", (256, 256)).save(tmp_path / "cat" / "a.png")
    with pytest.raises(ImageError, match="is not an index map"):
        shares_of(tmp_path, ["cat/a.jpg"], [view], PREPROCESSING, (14, 14))
