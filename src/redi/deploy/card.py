"""The model card of an accelerated model: how to load it, what it is, and what was measured."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from redi.images.preprocessing import Preprocessing
from redi.records.setting import Setting
from redi.records.tuning import Point, Tuned
from redi.reduction import Schedule

#: The fields of a setting that a measured curve depends on, besides the cost.
MEASURED = ("shape", "protection", "steps", "task", "relevance", "restore", "tokens")
TAGS = ["redi", "token-merging", "vision-transformer"]
NOT_MEASURED = (
    "Not measured: neither the speed of this model nor what it loses against the original. `redi tune` measures both "
    "on your images."
)
NOT_MEASURED_LEARNED = (
    "Not measured: neither the speed of this model nor what it loses against the original. `redi bench` and `redi "
    "compare` measure them."
)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a card says about a model."""

    name: str  # Hub name or folder, for the first line of code
    task: str  # of transformers' pipelines; empty for a backbone, which none of them runs
    base_model: str  # Hub name of the original; empty if unknown
    license: str  # empty if unknown
    cost: float  # relative to dense
    schedule: Schedule
    preprocessing: Preprocessing | None  # None if the image processor of the original is kept
    tuned: Tuned | None  # the record of `redi tune`, if the setting comes from it
    processor: dict[str, Any] = field(default_factory=dict)  # the settings of the one that is kept, if it is known
    image_tokens: int = 0  # that a language model reads per image; 0 if there is none
    learned: str = ""  # title of the learned reducer; empty for our own


def model_card(facts: Facts) -> str:
    data = ModelCardData(
        library_name="redi",
        pipeline_tag=facts.task or None,
        base_model=facts.base_model or None,
        license=facts.license or None,
        tags=TAGS,
    )
    base = (
        f"[{facts.base_model}](https://huggingface.co/{facts.base_model})"
        if facts.base_model
        else "a Vision Transformer"
    )
    return f"""---
{data.to_yaml()}
---

# {facts.name}

```python
import redi.deploy  # transformers can read this model after this line
{_use(facts)}
```

`pip install redi-vit` installs redi. Without the import, transformers does not know the model type and refuses to load
the model. No code is downloaded with it.

This is {base}, made faster by `redi.accelerate`. {_reducer(facts.learned)} The weights are those of
the original model. They are in the folder `dense`, as an ordinary checkpoint.

| | |
|---|---|
| cost of the blocks, relative to the original | {facts.cost:.3f} |
| patch tokens after each block | {", ".join(map(str, facts.schedule))} |
{_input(facts.preprocessing)}{_image_tokens(facts.image_tokens)}
| license | {facts.license or "that of the original model"} |

## Measured

{_measured(facts)}
"""


def _reducer(learned: str) -> str:
    if learned:
        return f"A learned reducer ({learned}, in `reducer.safetensors`) shortens the sequence of patch tokens."
    return "Patch tokens are merged from block to block."


def _measured(facts: Facts) -> str:
    if facts.learned:
        return NOT_MEASURED_LEARNED
    return NOT_MEASURED if facts.tuned is None else _curve(facts.tuned, facts.cost)


def _use(facts: Facts) -> str:
    if not facts.task:
        return f"""from redi.deploy import Accelerated

model = Accelerated.from_pretrained({json.dumps(facts.name)})
model(pixel_values).feature_maps"""
    if facts.image_tokens:
        return f"""from redi.deploy import Accelerated
from transformers import AutoProcessor

model = Accelerated.from_pretrained({json.dumps(facts.name)})
processor = model.processor(AutoProcessor.from_pretrained({json.dumps(facts.base_model or "folder of the original")}))
inputs = processor(images=image, text=prompt, return_tensors="pt")
processor.decode(model.generate(**inputs)[0])"""
    return f"""from transformers import pipeline

model = pipeline({json.dumps(facts.task)}, model={json.dumps(facts.name)})
model("photo.jpg")"""


def _input(own: Preprocessing | None) -> str:
    if own is None:
        return "| input | that of the original model |"
    return (
        f"| input | shorter side to {own.shorter} px ({own.resample.name.lower()}), centre crop of {own.size} px |\n"
        f"| mean and standard deviation | {_numbers(own.mean)} and {_numbers(own.std)} |"
    )


def _image_tokens(count: int) -> str:
    return f"\n| image tokens that the language model reads per image | {count} |" if count else ""


def _curve(tuned: Tuned, cost: float) -> str:
    """The table of all costs; the row of this model is bold."""
    lines = [
        f"By `redi tune`, on {tuned.images} images of {tuned.config.images} that the schedule was not calibrated on. "
        f"The drop is in points of {tuned.measure}; with 95 % confidence it is at most the number in brackets. The "
        f"speed-up is the median (quartiles) over interleaved calls of {tuned.config.batch} images on "
        f"{_machine(tuned)}.",
        "",
        "| cost | speed-up | cosine of patches | patches that agree | drop |"
        if tuned.dense_task
        else "| cost | speed-up | Top-1 | agreement | drop |",
        "|---|---|---|---|---|",
    ]
    if tuned.dense_accuracy is not None:
        lines.append(f"| 1 (original) | 1 | {tuned.dense_accuracy:.1f} | 100 | 0 |")
    own = [point for point in tuned.points if abs(point.cost - cost) < 0.0005]
    lines += [_row(point, bold=point in own) for point in tuned.points]
    if own and own[0].drop_bound > tuned.allowed:
        lost = f"up to {own[0].drop_bound:.1f} points of {tuned.measure} may be lost, {tuned.allowed:g} were allowed"
        lines += ["", f"This model is outside the tolerance that was asked for: {lost}."]
    if not own:
        lines += ["", f"The cost of this model, {cost:.3f}, is not among those that were measured."]
    return "\n".join(lines)


def _row(point: Point, bold: bool) -> str:
    low, median, high = point.speedup
    cells = [
        f"{point.cost:.3f}",
        f"{median:.2f} ({low:.2f} to {high:.2f})",
        f"{point.cosine:.3f}" if point.cosine is not None else _top1(point),
        f"{point.agreement:.1f}",
        f"{point.drop:.1f} ({point.drop_bound:.1f})",
    ]
    return "| " + " | ".join(f"**{cell}**" if bold else cell for cell in cells) + " |"


def _top1(point: Point) -> str:
    return "no labels" if point.accuracy is None else f"{point.accuracy:.1f}"


def _machine(tuned: Tuned) -> str:
    made = tuned.environment
    return f"{made.device} ({made.machine}, {made.threads} threads, torch {made.torch})"


def _numbers(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def public(tuned: Tuned | None, setting: Setting) -> Tuned | None:
    """The record without the places of local files; None if it is of another way to merge than the setting's."""
    if tuned is None or any(getattr(tuned.setting, name) != getattr(setting, name) for name in MEASURED):
        return None
    config = tuned.config
    names: dict[str, Any] = {name: _public_name(getattr(config, name)) for name in ("backbone", "images", "class_map")}
    return replace(tuned, config=replace(config, **names))


def _public_name(place: str) -> str:
    """A Hub name as it is; of a path, the last part."""
    is_path = Path(place).expanduser().exists() or place.startswith(("/", ".", "~"))
    return Path(place).name if is_path else place
