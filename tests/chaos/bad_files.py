"""Checkpoints, records and plugins that are damaged, edited by hand or wrong."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from chaos.case import Case, Make
from chaos.ground import Ground

#: Values that no size of a model has.
WRONG_VALUES: tuple[Any, ...] = (None, "many", -1, 0, 7, 1_000_000, 10**12, [], {}, 1.5)


def _with_checkpoint(kind: str, spoil: Callable[[Path], object]) -> Make:
    def make(ground: Ground, place: Path) -> list[str]:
        shutil.copytree(ground.user / kind, place / "model")
        spoil(place / "model")
        return ["inspect", str(ground.user / "photos" / "000.jpg"), "--backbone", str(place / "model")]

    return make


def checkpoints() -> Iterator[Case]:
    def config(name: str, value: Any) -> Callable[[Path], object]:
        def spoil(model: Path) -> None:
            content = json.loads((model / "config.json").read_text())
            content[name] = value
            (model / "config.json").write_text(json.dumps(content))

        return spoil

    for kind in ("backbone", "head"):
        for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "patch_size", "intermediate_size"):
            for value in WRONG_VALUES:
                yield Case(
                    f"checkpoint {kind}: {name} = {value!r}", _with_checkpoint(kind, config(name, value)), "model"
                )
        for name, value in (("model_type", "gpt2"), ("model_type", None), ("model_type", 3), ("model_type", [])):
            yield Case(f"checkpoint {kind}: {name} = {value!r}", _with_checkpoint(kind, config(name, value)), "model")
        for name, content in (("empty", b""), ("text", b"text"), ("zeros", bytes(9999)), ("a list", b"[]")):
            for file in ("config.json", "model.safetensors"):

                def write(model: Path, file: str = file, content: bytes = content) -> None:
                    (model / file).write_bytes(content)

                yield Case(f"checkpoint {kind}: {file} is {name}", _with_checkpoint(kind, write), "model")

        def half(model: Path) -> None:
            weights = model / "model.safetensors"
            os.truncate(weights, weights.stat().st_size // 2)

        def folder(model: Path) -> None:
            (model / "model.safetensors").unlink()
            (model / "model.safetensors").mkdir()

        yield Case(f"checkpoint {kind}: half the weights", _with_checkpoint(kind, half), "model")
        yield Case(f"checkpoint {kind}: weights are a folder", _with_checkpoint(kind, folder), "model")
        for file in ("config.json", "model.safetensors"):

            def remove(model: Path, file: str = file) -> None:
                (model / file).unlink()

            def dangle(model: Path, file: str = file) -> None:
                (model / file).unlink()
                (model / file).symlink_to("nowhere")

            yield Case(f"checkpoint {kind}: no {file}", _with_checkpoint(kind, remove), "model")
            yield Case(f"checkpoint {kind}: {file} is a dangling link", _with_checkpoint(kind, dangle), "model")


def processors() -> Iterator[Case]:
    for kind in ("backbone", "head"):
        for field in ("image_mean", "image_std"):
            for text in ("[]", "[NaN, NaN, NaN]", "[1e300, 1, 1]", "[1, 1]", '"x"', "[" * 200_000):

                def constants(model: Path, field: str = field, text: str = text) -> None:
                    (model / "preprocessor_config.json").write_text(f'{{"{field}": {text}}}')

                name = f"processor {kind}: {field} = {text[:20]}"
                yield Case(name, _with_checkpoint(kind, constants), "preprocessor_config.json")


PLUGIN = "import sys, torch\nimport redi\n{}\n"
SCORER = "def mine(inputs):\n    {}\n"


def plugins() -> Iterator[Case]:
    def case(name: str, code: str, expected: str, kind: str = "--scorer") -> Case:
        def make(ground: Ground, place: Path) -> list[str]:
            (place / "mine.py").write_text(PLUGIN.format(code))
            more = [] if kind == "--scorer" else ["--scorer", "mass"]
            own = f"{place / 'mine.py'}:mine"
            return ["compare", str(ground.run_folder(place)), *more, kind, own, "--keep", "0.5", "--workers", "0"]

        return Case(f"plugin: {name}", make, expected)

    yield case("syntax error", "def mine(:", "cannot be imported")
    yield case("exits when imported", "sys.exit(0)", "cannot be imported")
    yield case("raises when imported", "1 / 0", "cannot be imported")
    yield case("no such name", "x = 1", "no function")
    yield case("not a function", "mine = 3", "no function")
    yield case("takes nothing", "def mine():\n    return 3", "mine")
    for kind in ("--scorer", "--reducer"):
        argument = "def mine(*arguments, **named):\n    {}"
        for name, body in (
            ("exits", "sys.exit(0)"),
            ("raises", "raise KeyError('x')"),
            ("raises without a text", "raise ValueError"),
            ("raises many lines", "raise ValueError('a\\nb\\nc')"),
            ("returns None", "return None"),
            ("returns text", "return 'text'"),
            ("returns one number", "return torch.zeros(1)"),
            ("returns NaN", "return torch.full((4, 196), float('nan'))"),
            ("returns too many", "return torch.zeros(4, 1000)"),
            ("recurses", "return mine(*arguments, **named)"),
        ):
            yield case(f"{kind} {name}", argument.format(body), "mine", kind)


def records() -> Iterator[Case]:
    """Records of a run that were edited by hand, and what reads them."""
    for command in ("report", "figures"):
        for name in ("rows", "costs", "notes", "environment", "digests"):
            for value in ("missing", None, 3, "text", [], [3], {}, {"x": 1}):
                if (name, value) in (("costs", []), ("digests", {}), ("digests", {"x": 1})):
                    continue
                yield Case(f"record: {command} with {name} {value!r}", _edited(command, name, value), "results.json")
        for text in ("", "{", "[]", "3", "null", '{"rows": []}', "\x00", '{"rows": NaN}'):

            def spoiled(ground: Ground, place: Path, command: str = command, text: str = text) -> list[str]:
                run = ground.run_folder(place)
                (run / "results.json").write_text(text)
                return [command, str(run)]

            yield Case(f"record: {command} with results {text!r}", spoiled, "results.json")
    for text in ("", "{", "[]", "3", '{"cost": 3}', '{"cost": "x", "shape": null, "protection": 1.0}', '{"cost": NaN}'):

        def setting(ground: Ground, place: Path, text: str = text) -> list[str]:
            (place / "setting.json").write_text(text)
            out = ["--out", str(place / "m.onnx")]
            return ["export", str(ground.user / "head"), "--setting", str(place / "setting.json"), *out]

        yield Case(f"record: export with setting {text!r}", setting, "cost" if '"cost": 3' in text else "setting.json")


def _edited(command: str, name: str, value: Any) -> Make:
    def make(ground: Ground, place: Path) -> list[str]:
        run = ground.run_folder(place)
        content = json.loads((run / "results.json").read_text())
        if value == "missing":
            del content[name]
        else:
            content[name] = value
        (run / "results.json").write_text(json.dumps(content))
        return [command, str(run)]

    return make
