"""Accelerated models as files and on the Hub, which transformers reads where ``redi.deploy`` is imported.

A folder holds::

    config.json               a model type that transformers alone does not know, the class names and the precision
    setting.json              the setting; beside it tune.json, the record of `redi tune`, if there is one
    reducer.safetensors       the learned reducer, if it has one
    preprocessor_config.json  the input
    README.md                 the model card
    dense/                    the original checkpoint, in the format of its own library

No weights lie beside config.json, and it does not hold the original configuration. With both, transformers' own
classes would find a configuration of their type and load the dense model without a word.
"""

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, no_type_check

import torch
from huggingface_hub import HfApi
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from redi.backbone import Backbone, load_backbone
from redi.backbone.checkpoint import FILES, checkpoint_folder, read_json
from redi.deploy.card import Facts, model_card
from redi.deploy.origin import PROCESSOR, Origin
from redi.deploy.parts import GENERATION, Parts, load_live, take_apart
from redi.deploy.processor import AcceleratedImageProcessor, stock
from redi.errors import ArtifactError, BackboneError, ConfigError, one_line
from redi.learning.files import LearnedFile, load_learned, save_learned
from redi.records.drafts import folder_draft, install, is_cut_off
from redi.records.reading import read_record, write_record
from redi.records.setting import Setting
from redi.records.tuning import Tuned
from redi.runs.distributed import choose_device

CONFIG, SETTING, RECORD, CARD, DENSE = "config.json", "setting.json", "tune.json", "README.md", "dense"
REDUCER = "reducer.safetensors"
#: All files that a folder may hold, as paths.
OWN_FILES = re.compile(
    r"(config|setting|tune|preprocessor_config)\.json|reducer\.safetensors|README\.md"
    r"|dense/((config|generation_config|preprocessor_config)\.json"
    r"|model(-\d+-of-\d+)?\.safetensors|model\.safetensors\.index\.json)"
)
#: Files that the processor of a vision-language model writes beside them. They are left as they are.
PROCESSOR_FILES = re.compile(
    r"(processor_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|chat_template)\.json"
    r"|chat_template\.jinja|merges\.txt|vocab\.txt|tokenizer\.model"
)
#: Options of ``from_pretrained`` that say where on the Hub a file is.
HUB_OPTIONS = ("revision", "cache_dir", "force_download", "local_files_only", "token")
#: Options that transformers adds by itself, or that change nothing here.
WITHOUT_EFFECT = {
    *("_from_auto", "_from_pipeline", "_commit_hash", "adapter_kwargs"),
    *("trust_remote_code", "code_revision", "use_safetensors", "low_cpu_mem_usage"),
}


@no_type_check  # a check of the fields would refuse those that transformers adds
class AcceleratedConfig(PreTrainedConfig):
    """Marks a saved classifier. The model itself keeps the configuration of the original."""

    model_type = "redi_accelerated"
    base_model: str = ""  # Hub name of the original
    license: str = ""


@no_type_check
class AcceleratedEncoderConfig(AcceleratedConfig):
    """Marks a saved model without a head."""

    model_type = "redi_accelerated_encoder"


@no_type_check
class AcceleratedBackboneConfig(AcceleratedConfig):
    """Marks a saved backbone, which gives feature maps."""

    model_type = "redi_accelerated_backbone"


@no_type_check
class AcceleratedDepthConfig(AcceleratedConfig):
    """Marks a saved depth estimator."""

    model_type = "redi_accelerated_depth"


@no_type_check
class AcceleratedSegmentationConfig(AcceleratedConfig):
    """Marks a saved model for semantic segmentation."""

    model_type = "redi_accelerated_segmentation"


@no_type_check
class AcceleratedLanguageConfig(AcceleratedConfig):
    """Marks a saved vision-language model."""

    model_type = "redi_accelerated_language"


#: What marks a model of each task of :class:`Facts`.
BY_TASK: dict[str, Any] = {
    "image-classification": AcceleratedConfig,
    "image-feature-extraction": AcceleratedEncoderConfig,
    "": AcceleratedBackboneConfig,
    "depth-estimation": AcceleratedDepthConfig,
    "image-segmentation": AcceleratedSegmentationConfig,
    "image-text-to-text": AcceleratedLanguageConfig,
}
CONFIGS: dict[str, Any] = {kind.model_type: kind for kind in BY_TASK.values()}
#: Models that keep the original's image processor, if it has one. That of a vision-language model is not saved.
WHOLE_MODELS = {
    kind.model_type for kind in (AcceleratedDepthConfig, AcceleratedSegmentationConfig, AcceleratedLanguageConfig)
}


class Loaded(NamedTuple):
    """What a folder holds."""

    parts: Parts
    setting: Setting
    tuned: Tuned | None
    original: Origin
    learned: LearnedFile | None


def write_model(
    folder: Path,
    dense: Any,
    class_names: list[str] | None,
    setting: Setting,
    facts: Facts,
    learned: LearnedFile | None = None,
) -> None:
    """Write all files into a draft, then move them into the folder; ``dense`` is the original model."""
    _own_files(folder)
    if not (isinstance(dense, PreTrainedModel) or dense.config.settings):
        raise BackboneError(
            "A live model of timm does not know how it was created, so it cannot be saved: accelerate it by its name, "
            'e.g. "timm:deit3_base_patch16_224.fb_in1k".'
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with folder_draft(folder, CONFIG) as draft:
            _write_dense(draft / DENSE, dense)
            _write_processors(draft, facts)
            _config(dense, class_names, facts).save_pretrained(draft)
            write_record(draft / SETTING, setting)
            if facts.tuned is not None:
                write_record(draft / RECORD, facts.tuned)
            if learned is not None:
                save_learned(draft / REDUCER, learned.method, learned.training, {"learned": learned.training.method})
            (draft / CARD).write_text(model_card(facts), encoding="utf-8")
            install(draft, folder, _own_files(folder), CONFIG)
    except (OSError, SafetensorError) as error:
        raise ArtifactError(f"{folder} cannot be written: {getattr(error, 'strerror', None) or error}.") from error


def _own_files(folder: Path) -> list[str]:
    """The files of an accelerated model in a folder, which the next one replaces. Any other file is refused."""
    if not folder.is_dir():
        return []
    is_ours = _kind(folder) in CONFIGS or is_cut_off(folder, CONFIG)
    places = [folder]
    if (dense := folder / DENSE).is_dir() and not dense.is_symlink():
        places.append(dense)
    visible = [entry for place in places for entry in place.iterdir() if not entry.name.startswith(".")]
    entries = [entry.relative_to(folder).as_posix() for entry in visible if entry not in places]
    entries = [name for name in entries if not (is_ours and PROCESSOR_FILES.fullmatch(name))]
    for name in sorted(entries):
        if not (is_ours and OWN_FILES.fullmatch(name) and (folder / name).is_file()):
            raise ConfigError(f"{folder} holds {name}, which is not of an accelerated model: choose another folder.")
    return entries


def _kind(folder: Path) -> str:
    file = folder / CONFIG
    return str(read_json(file).get("model_type")) if file.exists() else ""


def _config(dense: Any, class_names: list[str] | None, facts: Facts) -> Any:
    known: dict[str, Any] = {"base_model": facts.base_model, "license": facts.license, "dtype": dense.dtype}
    if class_names is not None:
        known["id2label"] = dict(enumerate(class_names))
        known["label2id"] = {name: number for number, name in enumerate(class_names)}
    return BY_TASK[facts.task](**known)


def _write_processors(draft: Path, facts: Facts) -> None:
    """Write our image processor, and the closest of transformers beside the dense weights, or keep the original's."""
    kept = facts.processor
    if facts.preprocessing is not None:
        AcceleratedImageProcessor.of(facts.preprocessing).save_pretrained(draft)
        kept = stock(facts.preprocessing)
    elif kept:
        (draft / PROCESSOR).write_text(json.dumps(kept, indent=2), encoding="utf-8")
    if kept:
        (draft / DENSE / PROCESSOR).write_text(json.dumps(kept, indent=2), encoding="utf-8")


def _write_dense(folder: Path, model: Any) -> None:
    if isinstance(model, PreTrainedModel):
        model.save_pretrained(folder)
        return
    folder.mkdir()
    (folder / CONFIG).write_text(json.dumps(model.config.settings, indent=2), encoding="utf-8")
    weights = {name: value.contiguous() for name, value in model.vit.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def read_model(name_or_path: str | Path, config: Any, options: dict[str, Any]) -> Loaded:
    """Load what :func:`write_model` wrote; ``options`` are those of transformers' ``from_pretrained``."""
    dtype, device_map = options.pop("torch_dtype", None), options.pop("device_map", None)
    dtype = options.pop("dtype", None) or dtype
    hub = {name: options.pop(name) for name in HUB_OPTIONS if name in options}
    for name, value in options.items():
        if name not in WITHOUT_EFFECT and value is not None:
            raise ConfigError(f"An accelerated model is loaded as it was saved: from_pretrained() takes no {name}.")
    own_files = (CONFIG, SETTING, RECORD, REDUCER, PROCESSOR)
    dense_files = (f"{DENSE}/{file}" for file in (*FILES, GENERATION))
    folder = checkpoint_folder(name_or_path, files=(*own_files, *dense_files), **hub)
    if is_cut_off(folder, CONFIG):
        raise BackboneError(f"The last save to {folder} was cut off, so it holds no whole model: save the model again.")
    kind = _kind(folder)
    if kind not in CONFIGS:
        raise BackboneError(f"{name_or_path} holds no accelerated model: make one with redi.accelerate().")
    stored = read_json(folder / CONFIG)
    _require_unchanged(config, stored)
    for file in (SETTING,) if kind in WHOLE_MODELS else (SETTING, PROCESSOR):
        if not (folder / file).exists():
            raise BackboneError(f"There is no {file} in {folder}: save the model again.")
    precision, device = _dtype(dtype, stored.get("dtype")), _device(device_map)
    live = load_live(folder / DENSE, precision)
    parts = Parts(load_backbone(folder / DENSE)) if live is None else take_apart(live)
    processor = read_json(folder / PROCESSOR) if (folder / PROCESSOR).exists() else {}
    if processor.get("image_processor_type") == AcceleratedImageProcessor.__name__:  # the user may have saved another
        parts.backbone.preprocessing = AcceleratedImageProcessor(**processor).preprocessing
    nn.Module.to(parts.backbone, device, precision)
    if isinstance(parts.decoder, nn.Module):
        # A language model is in its precision already. Its rotary frequencies stay in FP32, as transformers loads them.
        nn.Module.to(parts.decoder, device, None if kind == AcceleratedLanguageConfig.model_type else precision)
    setting = Setting.load(folder / SETTING)
    tuned = read_record(folder / RECORD, Tuned, "redi tune") if (folder / RECORD).exists() else None
    learned = load_learned(folder / REDUCER, parts.backbone) if (folder / REDUCER).exists() else None
    return Loaded(parts, setting, tuned, Origin(*(str(stored.get(name) or "") for name in Origin._fields)), learned)


def _require_unchanged(given: Any, stored: dict[str, Any]) -> None:
    """Refuse a configuration that the caller has changed: it would have no effect."""
    if given is None:
        return
    before, free = type(given).from_dict(stored).to_dict(), {"dtype", "transformers_version", "_name_or_path"}
    changed = [name for name, value in given.to_dict().items() if name not in free and value != before.get(name)]
    if getattr(given, "_attn_implementation", None) not in (None, "sdpa"):  # which an accelerated model uses
        changed.append("attn_implementation")
    if changed:
        raise ConfigError(f"An accelerated model is loaded as it was saved: {changed[0]} cannot be changed.")


def _dtype(asked: Any, stored: Any) -> torch.dtype:
    name = stored or "float32" if asked in (None, "auto") else asked
    dtype = getattr(torch, name.removeprefix("torch."), None) if isinstance(name, str) else name
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ConfigError(f"dtype must be a floating-point type of torch, such as torch.bfloat16, not {name!r}.")
    return dtype


def _device(device_map: Any) -> torch.device:
    """The one device of the model; transformers' maps from modules to devices are for larger models."""
    one = device_map.get("") if isinstance(device_map, dict) and len(device_map) == 1 else device_map
    if isinstance(one, dict):
        raise ConfigError("An accelerated model lies on one device: pass device_map='cpu', 'cuda:0' or 'auto'.")
    name = "cpu" if one is None else f"cuda:{one}" if isinstance(one, int) else str(one)
    return choose_device(name)


class Published(nn.Module):
    """A model that can be saved and published."""

    def __init__(self, backbone: Backbone, setting: Setting) -> None:
        super().__init__()
        self.backbone = backbone
        self.setting = setting
        self.learned: LearnedFile | None = None

    @property
    def dense(self) -> nn.Module:
        raise NotImplementedError

    def facts(self, name: str, license_name: str) -> Facts:
        raise NotImplementedError

    def save_pretrained(self, folder: str | Path, license: str = "") -> None:  # noqa: A002
        """Write the model, its input and a model card. transformers' Auto classes and pipelines read the folder.

        ``license`` goes into the card, e.g. ``apache-2.0``.
        """
        self._write(Path(folder), Path(folder).absolute().name, license)

    def _write(self, folder: Path, name: str, license_name: str) -> None:
        facts = self.facts(name, license_name)
        write_model(folder, self.dense, self.backbone.class_names, self.setting, facts, self.learned)

    def push_to_hub(
        self,
        name: str,
        license: str = "",  # noqa: A002
        *,
        private: bool | None = None,
        token: str | bool | None = None,
        **options: Any,
    ) -> str:
        """Publish on the Hub as ``owner/name``, and return the address.

        ``options`` are those of huggingface_hub's ``upload_folder``, such as ``commit_message`` and ``revision``.
        """
        api = HfApi(token=token)
        with TemporaryDirectory() as place:
            self._write(Path(place), name, license)
            try:
                repository = api.create_repo(name, private=private, exist_ok=True)
                api.upload_folder(repo_id=repository.repo_id, folder_path=place, **options)
            except Exception as error:  # httpx and huggingface_hub raise many types
                raise BackboneError(f"{name} cannot be published on the Hub ({one_line(error)})") from error
        return str(repository)
