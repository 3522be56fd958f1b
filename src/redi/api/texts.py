"""Embeddings of class names, for the label source ``text``."""

from collections.abc import Sequence
from pathlib import Path

from redi.api.results import TextResult
from redi.backbone.text import TEMPLATES, class_embeddings, load_text_tower
from redi.checks import require_type
from redi.errors import ConfigError
from redi.images import open_images
from redi.images.classes import class_titles, listed_classes, prompt_names
from redi.records.outputs import require_apart, require_file
from redi.records.texts import ClassTexts, is_texts
from redi.runs.distributed import choose_device
from redi.runs.places import data_places


def text(
    backbone: str | Path,
    train: str | Path | None = None,
    names: str | Path | None = None,
    *,
    out: str | Path = "text.safetensors",
    template: str | Sequence[str] | None = None,
    device: str | None = None,
) -> TextResult:
    """Embed the names of classes with the text tower of a model of images and texts, as ``redi text`` does.

    ``backbone`` is the folder or the Hub name of the whole model, e.g. of CLIP, with its tokenizer. The classes are the
    class folders of ``train``. ``names`` is a file with their readable names; without ``train``, it lists the classes.
    ``template`` is one prompt or a list of them, in which {} is the name. The file ``out`` is for
    :func:`redi.compare`, with the label source ``text``.
    """
    require_type(out, str | Path, "out")
    require_type(names, str | Path | None, "names")
    file, names = Path(out).expanduser(), None if names is None else Path(names).expanduser()
    if train is None and names is None:
        raise ConfigError("Name the classes: give --train DIR, --names FILE or both.")
    require_file(file, (".safetensors",), ours=is_texts)
    inputs = [("the model", place) for place in data_places(str(backbone))]
    inputs += [("the training data", place) for place in (data_places(str(train)) if train else [])]
    require_apart(file, inputs)
    if train is not None:
        classes = list(open_images(str(train)).class_names)
        titles = class_titles(classes, [], [], names)
    else:
        assert names is not None
        listed = listed_classes(names)
        classes, titles = list(listed), list(listed.values())
    templates = [template] if isinstance(template, str) else list(template or TEMPLATES)
    spoken = prompt_names(titles)
    tower = load_text_tower(backbone).to(choose_device(device or "auto"))
    embeddings = class_embeddings(tower, spoken, templates).cpu()
    texts = ClassTexts(classes, spoken, templates, tower.digest, embeddings, tower.scale, tower.bias)
    texts.write(file)
    return TextResult(file, texts)
