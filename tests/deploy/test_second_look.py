"""Second looks: which images get the dense answer, and what that costs."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from families import make_model
from redi.deploy import Accelerated, Setting, accelerate
from redi.deploy.export import export
from redi.deploy.second_look import look_costs
from redi.errors import ConfigError, CorpusError
from redi.images import open_pictures
from redi.records.setting import SecondLook
from redi.reduction.schedule import Shape

SETTING = Setting(0.9, Shape(1, 3))  # the first block is shared
#: The last one reads all patches.
HEADS = {"vit_head": SETTING, "deit_distilled": SETTING, "dinov2_registers_head": Setting(0.9, Shape(0, 3))}

PIXELS = torch.randn(40, 3, 48, 48, generator=torch.Generator().manual_seed(0))


@pytest.fixture(params=HEADS)
def adaptive(request: pytest.FixtureRequest) -> Accelerated:
    return accelerate(make_model(request.param), setting=HEADS[request.param], adaptive=True, images=PIXELS)


@torch.no_grad()
def test_an_unsure_image_gets_the_dense_answer_and_a_sure_one_that_of_the_first_look(adaptive: Accelerated) -> None:
    look = adaptive.setting.second_look
    assert look is not None
    first = Accelerated(adaptive.backbone, replace(adaptive.setting, second_look=replace(look, confidence=0.0)))
    dense = Accelerated(adaptive.backbone, Setting(cost=1.0))
    pixels = torch.randn(24, 3, 48, 48)
    logits, first_logits, dense_logits = (model(pixels).logits for model in (adaptive, first, dense))
    sure = first_logits.softmax(dim=1).amax(dim=1) >= look.confidence
    assert 0 < int(sure.sum()) < 24
    torch.testing.assert_close(logits[sure], first_logits[sure])
    torch.testing.assert_close(logits[~sure], dense_logits[~sure], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(first_logits[~sure], dense_logits[~sure], atol=1e-4)
    alone = torch.cat([adaptive(image[None]).logits for image in pixels])
    torch.testing.assert_close(alone, logits, atol=1e-5, rtol=1e-5)


def test_a_folder_of_images_sets_the_confidence_as_its_pixels_do(small_data: Path) -> None:
    folder = small_data / "val"
    model = accelerate(make_model("vit_head"), setting=SETTING, adaptive=True, images=folder)
    pictures = open_pictures(str(folder))
    preprocessing = model.backbone.preprocessing
    pixels = torch.stack([preprocessing(pictures.load(index)) for index in range(len(pictures.labels))])
    by_hand = accelerate(make_model("vit_head"), setting=SETTING, adaptive=True, images=pixels)
    assert model.setting == by_hand.setting
    with pytest.raises(CorpusError, match=r"^There is no folder nowhere; pass a folder of images, "):
        accelerate(make_model("vit_head"), setting=SETTING, adaptive=True, images="nowhere")


def test_the_budget_is_a_mean_over_the_images_that_the_confidence_was_set_on() -> None:
    torch.manual_seed(0)
    images = torch.randn(200, 3, 48, 48)
    model = accelerate(make_model("vit_head"), setting=SETTING, adaptive=True, images=images)
    costs = look_costs(model, images)
    assert len(costs.unique()) == 2, "one look or two"
    assert costs.mean().item() == pytest.approx(model.cost(), abs=0.01)
    assert 0.85 < model.cost() <= 0.9
    look, on = model.setting.second_look, model.backbone.geometry
    assert look is not None
    # A second look is dense without the shared block, and half of the budget above 0.5 goes there.
    dense = Accelerated(model.backbone, Setting(1.0)).cost()
    assert model.setting.second_cost(on, True) == pytest.approx(dense - 1 / 3, abs=1e-6)
    assert look.share * (dense - 1 / 3) == pytest.approx(0.2, abs=1e-6)


def test_a_setting_with_second_looks_is_a_file(adaptive: Accelerated, tmp_path: Path) -> None:
    adaptive.setting.save(tmp_path / "setting.json")
    again = Setting.load(tmp_path / "setting.json")
    assert again == adaptive.setting
    assert accelerate(adaptive.backbone, setting=again, adaptive=True).cost() == adaptive.cost()


def test_mistakes_get_one_line(adaptive: Accelerated, tmp_path: Path) -> None:
    images = torch.randn(2, 3, 48, 48)
    with pytest.raises(ConfigError, match=r"adaptive=True needs images=\.\.\."):
        accelerate(adaptive.backbone, 0.7, adaptive=True)
    with pytest.raises(ConfigError, match="images are for adaptive=True"):
        accelerate(adaptive.backbone, 0.7, images=images)
    with pytest.raises(ConfigError, match="no images to set a confidence on"):
        accelerate(adaptive.backbone, 0.7, adaptive=True, images=images[:0])
    with pytest.raises(ConfigError, match=r"A cost of 0\.5 leaves nothing for second looks"):
        accelerate(make_model("vit_head"), 0.5, adaptive=True, images=images)
    with pytest.raises(ConfigError, match=r"was set for a cost of 0\.9"):
        adaptive.at_cost(0.7)
    with pytest.raises(ConfigError, match="Second looks need a head"):
        accelerate(make_model("dinov2"), setting=adaptive.setting)
    with pytest.raises(ConfigError, match="Second looks cannot be exported"):
        export(adaptive, tmp_path / "model.onnx", images)
    for wrong in ((-0.1, 0.5), (1.1, 0.5), (0.5, 0.0), (0.5, 1.0)):
        with pytest.raises(ConfigError, match="Confidence lies between 0 and 1"):
            SecondLook(*wrong)
