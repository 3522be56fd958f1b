"""ONNX files that compute what PyTorch computes, and none that do not."""

import io
import sys
from contextlib import nullcontext
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from families import CHECKPOINTS, make_model, save_checkpoint
from redi.backbone import load_backbone
from redi.demo.examples import example_pixels
from redi.deploy import accelerate
from redi.deploy.engines import ENGINES, Run, onnx_libraries
from redi.deploy.export import TOLERANCE, _spread, export, require_ordered
from redi.deploy.onnx_speed import measure_export, original
from redi.errors import ConfigError, ExportError, InvalidInput
from redi.records.timing import read_bench, write_bench
from redi.report.bench import print_bench

DEMO = str(files("redi.demo") / "demo-vit")


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_every_engine_computes_what_pytorch_computes(name: str, tmp_path: Path) -> None:
    given = save_checkpoint(name, tmp_path / "timm") if "timm" in name else make_model(name)
    model = accelerate(given, cost=0.7)
    file = tmp_path / "model.onnx"
    pixels, others = torch.randn(2, 2, 3, 40, 64)
    written = export(model, file, pixels)
    assert (written.file, written.inputs, written.bytes) == (file, (2, 3, 40, 64), file.stat().st_size)
    assert list(written.differences) == ["onnxruntime", "openvino"]
    assert max(written.differences.values()) < 1e-4
    constant = torch.tensor([0.7, -1.3]).view(2, 1, 1, 1).expand_as(others)  # every patch is like every other
    half = torch.cat([constant[..., :32], others[..., 32:]], dim=3)
    for load in ENGINES.values():
        run = load(file)
        for images in (others, constant, half, constant.flip(0)):
            with torch.no_grad():
                expected = model(images)
            assert written.outputs == tuple(expected.keys())
            for output, wanted in zip(run(images), expected.values(), strict=True):
                assert (output - wanted).abs().max() < 1e-4 * wanted.abs().max()
    assert not list(tmp_path.glob(".*")), "the draft is gone"
    sorts = [node.input[0] for node in onnx.load(file).graph.node if node.op_type == "TopK"]
    makers = {name: node.op_type for node in onnx.load(file).graph.node for name in node.output}
    assert sorts
    assert 2 * [makers[name] for name in sorts].count("Add") == len(sorts), "every sort has a second one of pairs"


def test_a_blank_image_is_compared_if_pytorch_is_settled_on_it(tmp_path: Path) -> None:
    """Rotary positions make its patches nearly equal. At one cost, two merges tie within rounding."""
    backbone, blank = load_backbone(DEMO), torch.zeros(1, 3, 224, 224)
    spreads = {}
    for cost in (0.5, 0.65, 0.8):
        model = accelerate(backbone, cost=cost)

        def outputs(given: Tensor, model: Any = model) -> tuple[Tensor]:
            return (model(given).last_hidden_state,)

        with torch.no_grad():
            spreads[cost] = _spread(outputs, blank, outputs(blank))
    assert spreads[0.5] > 0.01
    assert max(spreads[0.65], spreads[0.8]) < TOLERANCE / 10
    model = accelerate(backbone, cost=0.5)
    pixels = example_pixels(backbone.preprocessing, 4)
    assert max(export(model, tmp_path / "model.onnx", pixels).differences.values()) < 1e-4


@pytest.mark.filterwarnings("ignore")  # torch.export warns of its own internals
@pytest.mark.parametrize(
    ("order", "refused"),
    [
        (lambda values: values.argsort(dim=1), True),
        (lambda values: values.topk(3).indices, True),
        (lambda values: values.sort(dim=1).values, False),
        (lambda values: values.argsort(dim=1, stable=True), False),
    ],
)
def test_a_graph_that_reads_indices_of_an_unstable_sort_is_refused(order: Any, refused: bool) -> None:
    class Sort(nn.Module):
        def forward(self, values: Tensor) -> Any:
            return order(values)

    program = SimpleNamespace(exported_program=torch.export.export(Sort(), (torch.zeros(2, 9),)).run_decompositions())
    message = r"^The indices of aten\.(sort|topk)\.default differ between engines .*\.$"
    with pytest.raises(ExportError, match=message) if refused else nullcontext():
        require_ordered(program)


def test_outputs_that_are_not_finite_are_not_exported(tmp_path: Path) -> None:
    model = accelerate(make_model("vit_head"), cost=0.7)
    pixels = torch.full((1, 3, 48, 48), 3e38)
    with pytest.raises(InvalidInput, match=r"^The logits of the model must be finite, but 7 of 7 values are not\.$"):
        export(model, tmp_path / "model.onnx", pixels)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("engine", ENGINES)
def test_a_file_that_computes_something_else_does_not_replace_an_older_one(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = ENGINES[engine]

    def wrong(draft: Path) -> Run:
        """An engine whose first output is off by a tenth of its largest number, on blank images alone."""

        def run(pixels: Tensor) -> list[Tensor]:
            first, *rest = load(draft)(pixels)
            return [first + (0.0 if pixels.any() else 0.1) * first.abs().max(), *rest]

        return run

    monkeypatch.setitem(ENGINES, engine, wrong)
    file = tmp_path / "model.onnx"
    file.write_text("written before")
    with pytest.raises(ExportError, match=rf"^The outputs of {engine} differ .* 0\.1 .*written\.$"):
        export(accelerate(make_model("vit_head"), cost=0.7), file, torch.randn(1, 3, 48, 48))
    assert list(tmp_path.iterdir()) == [file], "no draft is left"
    assert file.read_text() == "written before"


def test_a_failing_exporter_is_one_line_and_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise RuntimeError("no such kernel\nin two lines")

    monkeypatch.setattr(torch.onnx, "export", refuse)
    model, pixels = accelerate(make_model("vit"), cost=0.7), torch.randn(1, 3, 48, 48)
    with pytest.raises(ExportError, match=r"^The export failed \(RuntimeError\): .*in two lines$"):
        export(model, tmp_path / "model.onnx", pixels)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, pixels = accelerate(make_model("vit"), cost=0.7), torch.randn(1, 3, 48, 48)
    with pytest.raises(ConfigError, match=r"^.*model\.onnx must be a file in a folder that exists\.$"):
        export(model, tmp_path / "gone" / "model.onnx", pixels)
    half = accelerate(make_model("vit"), cost=0.7).to(torch.bfloat16)
    with pytest.raises(ConfigError, match=r"^Export a model in float32, not torch\.bfloat16.*$"):
        export(half, tmp_path / "model.onnx", pixels)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"^ONNX needs onnx, onnxruntime and onnxscript: pip .*$"):
        export(model, tmp_path / "model.onnx", pixels)
    assert not list(tmp_path.iterdir())


class Sorts(nn.Module):
    """Every way in which the reducers sort and choose."""

    def forward(self, values: Tensor) -> tuple[Tensor, ...]:
        down = values.sort(dim=1, descending=True, stable=True)
        return (
            values.argsort(dim=1, stable=True),
            values.argsort(dim=-1, descending=True, stable=True),
            down.values,
            values.sort(dim=0, stable=True).indices,
            values.long().argsort(dim=1, descending=True, stable=True),
            values.argmax(dim=1),
            *values.max(dim=1),
            *values.min(dim=1),
        )


@pytest.mark.filterwarnings("ignore")  # the exporter warns of its own internals
def test_of_equal_values_the_first_comes_first_in_every_engine(tmp_path: Path) -> None:
    _, sort = onnx_libraries()
    values = torch.randint(0, 3, (4, 60)).float()
    program = torch.onnx.export(
        Sorts(),
        (values,),
        dynamo=True,
        input_names=["values"],
        custom_translation_table={torch.ops.aten.sort.stable: sort},
        verbose=False,
    )
    assert program is not None
    program.save(tmp_path / "sorts.onnx")
    for given in (values, torch.zeros(4, 60), torch.randint(0, 3, (4, 60)).float()):
        for load in ENGINES.values():
            outputs = load(tmp_path / "sorts.onnx")(given)
            assert all(torch.equal(output, wanted) for output, wanted in zip(outputs, Sorts()(given), strict=True))


def test_the_speed_is_the_median_of_ratios_of_calls_in_turn(tmp_path: Path) -> None:
    given, pixels, file = make_model("vit_head"), torch.randn(2, 3, 48, 48), tmp_path / "m.onnx"
    model = accelerate(given, cost=0.7)
    with torch.no_grad():
        torch.testing.assert_close(original(model)(pixels).logits, given(pixels).logits, atol=1e-6, rtol=1e-6)
    assert original(model).cost() == 1, "no shortcut is taken"
    export(model, file, pixels)
    # Begin and end of each call: two warm ones per model, then dense, accelerated, accelerated, dense, dense, ...
    lengths = iter([9, 9, 9, 9, 4, 2, 1, 6, 8, 2])
    times = iter([moment for length in lengths for moment in (0.0, float(length))])
    result = measure_export(model, file, pixels, "small", repeats=3, threads=1, clock=lambda: next(times))
    dense, accelerated = result.rows
    assert (dense.row, accelerated.row) == ("dense", "accelerated")
    assert (dense.median_ms, accelerated.median_ms) == (6e3, 2e3)
    assert accelerated.speedup == 4.0, "of 4 / 2, 6 / 1 and 8 / 2"
    assert accelerated.predicted == pytest.approx(1 / model.cost())
    assert (dense.tokens, accelerated.tokens) == (37, 1 + model.schedule((6, 6))[-1])
    assert result.environment["threads"] == 1
    write_bench(tmp_path / "m.json", result)
    assert read_bench(tmp_path / "m.json").rows == result.rows
    console = Console(record=True, width=80, file=io.StringIO())
    print_bench(result, console)
    assert "Batch 2, FP32, onnxruntime" in console.export_text()
