"""Commands with an option that cannot be."""

from collections.abc import Iterator
from typing import get_type_hints

from chaos.case import Case, fixed
from redi.cli import app

RUN = "run --config {user}/small.toml --out {place}/o"
TUNE = "tune {user}/head --images {user}/large/val --out {place}/t"
EXPORT = "export {user}/head --out {place}/m.onnx"
BENCH = "bench --out {place}/b.json --model-size tiny"
INSPECT = "inspect {user}/photos/000.jpg --run {run}"
DATA = "--train {user}/small/train --val {user}/small/val"

#: Per command: (options after it, a part of the message).
OPTIONS: dict[str, tuple[tuple[str, str], ...]] = {
    RUN: (
        ("--words 0", "words must lie in"),
        ("--words 30000", "words"),
        ("--words 40000", "words must lie in"),
        ("--passes 0", "passes must lie in"),
        ("--passes -3", "passes must lie in"),
        ("--seed -1", "seed must lie in"),
        ("--seed 99999999999", "seed must lie in"),
        ("--size 13", "size"),
        ("--size -8", "size"),
        ("--size 8000000", "size"),
        ("--classifier guess", "classifier must be one of"),
        ("--classifier native", "classifier"),
        ("--features raw", "features must be one of"),
        ("--cache fp8", "cache must be one of"),
        ("--device gpu", "device"),
        ("--device cuda:7", "cuda"),
        ("--device meta", "device"),
        ("--batch-size 0", "--batch-size must lie in"),
        ("--workers -1", "workers"),
        ("--threads -1", "threads"),
        ("--resize fuzzy", "resize"),
        ("--words many", "--words"),
        ("--train {user}/nothing", "there is no folder"),
        ("--val {user}/nothing", "there is no folder"),
        ("--train {user}/map.tsv", "map.tsv"),
        ("--backbone {user}/nothing", "there is no folder"),
        ("--backbone {user}/small", "config.json"),
        ("--backbone {user}/map.tsv", "map.tsv"),
        ("--backbone nobody/nothing-of-this-name", "nobody/nothing"),
        ("--backbone ./missing", "missing"),
        ("--train hf:nobody/nothing", "split"),
        ("--train hf:nobody/nothing:train", "cannot be loaded"),
        ("--train {user}/*.tar", "no shard"),
        ("--class-map {user}/nothing --classifier both", "class"),
    ),
    "run --config {user}/nothing.toml --out {place}/o": (("", "cannot be read"),),
    "run --config {user}/map.tsv --out {place}/o": (("", "not valid toml"),),
    "run --config {user}/photos/000.jpg --out {place}/o": (("", "not valid toml"),),
    "run --config {user} --out {place}/o": (("", "cannot be read"),),
    "run": (("", "--backbone is missing"), ("--nothing", "no such option")),
    "run --backbone {user}/backbone": (("", "--train is missing"),),
    "run --config {user}/small.toml": (("", "--out is missing"),),
    "run --config {user}/small.toml --out": (("{user}/map.tsv", "map.tsv"), ("/proc/nothing", "cannot be written")),
    "vocabulary --config {user}/small.toml --out {place}/o": (("--words -5", "words must lie in"),),
    "score --config {user}/small.toml --out {place}/o": (("--device nowhere", "device"),),
    "demo --out {place}/o": (("--threads -1", "threads"), ("--threads x", "--threads")),
    "demo": (("--out {user}/map.tsv", "map.tsv"),),
    "cost": (
        ("--patches 0", "--patches must lie in"),
        ("--patches -3", "--patches must lie in"),
        ("--prefix -1", "prefix"),
        ("--width 0", "width"),
        ("--keep 2", "keep"),
        ("--keep -0.5", "keep"),
        ("--keep nan", "keep"),
        ("--merge 0.9", "keep + merge must be at most 1"),
        ("--merge inf", "merge"),
        ("--cells 0", "cells must lie in"),
        ("--cells 99", "cells"),
        ("--cells -2", "cells must lie in"),
        ("--keep 0 --merge 0.5", "leaves no patch"),
    ),
    "compare {run}": (
        ("--scorer nothing", "no scorer"),
        ("--scorer mass --reducer nothing", "no reducer"),
        ("--scorer mass@99", "blocks"),
        ("--scorer mass@x", "mass@x"),
        ("--scorer rollout@1", "rollout reads every block"),
        ("--scorer redi_mass --labels guess", "label source"),
        ("--scorer redi_mass --labels text", "no embedding for that"),
        ("--scorer redi_mass --labels text --text {user}/map.tsv", "no embedding for that"),
        ("--scorer mass --tokens -3", "tokens"),
        ("--scorer mass --tokens 0", "tokens"),
        ("--scorer mass --tokens 100000", "tokens"),
        ("--scorer mass --keep 7", "keep"),
        ("--scorer mass --keep nan", "keep"),
        ("--scorer mass --keep -1", "keep"),
        ("--scorer mass --cost nan", "--cost must be"),
        ("--scorer mass --cost -1", "--cost must lie"),
        ("--scorer mass --cost 40", "--cost must lie"),
        ("--reducer tome --cost inf", "--cost must be"),
        ("--scorer mass --after 99", "after"),
        ("--scorer mass --after -1", "after"),
        ("--scorer mass --keep 0.5 --cost 0.5", "one of --keep"),
        ("--reducer prune", "give --scorer"),
        ("--keep 0.5", "need --scorer or --reducer"),
        ("--study nothing", "study"),
        ("--study scorers --against nothing", "nothing"),
        ("--study localisation", "masks"),
        ("--study localisation --masks {user}/nothing", "not a folder"),
        ("--study scorers --masks {user}/small", "--masks is for"),
        ("--study retrieval --gallery 1", "gallery"),
        ("--study retrieval --queries -5", "queries"),
        ("--scorer missing.py:name", "there is no file"),
        ("--reducer missing.py:name", "there is no file"),
        ("--scorer {user}/map.tsv:name", "file.py:name"),
        ("--scorer mass --workers -1", "workers"),
    ),
    "compare {user}/small": (("--scorer mass", "not a run folder"),),
    "compare {user}/nothing": (("--scorer mass", "not a run folder"),),
    "compare {user}/map.tsv": (("--scorer mass", "not a run folder"),),
    "compare {user}/precious": (("--scorer mass", "precious"),),
    "text {user}/head --out {place}/t.safetensors": (
        ("", "give --train"),
        ("--train {user}/small/train", "no text tower"),
        ("--names {user}/nothing", "cannot be read"),
        ("--names {user}/photos/000.jpg", "cannot be read"),
    ),
    "text {user}/head --train {user}/small/train": (
        ("--out {user}/head/model.safetensors", "model.safetensors"),
        ("--out {user}/small/train/t.safetensors", "t.safetensors"),
        ("--out {user}/small", "small"),
    ),
    "report {user}/nothing": (("", "nothing"),),
    "report {user}/small": (("", "small"),),
    "report {user}/precious": (("", "precious"),),
    "report {run}": (
        ("--names {user}/nothing", "cannot be read"),
        ("--names {user}/photos/000.jpg", "cannot be read"),
        ("--names {user}/small.toml", "small.toml"),
    ),
    "figures {user}/nothing": (("", "nothing"),),
    "figures {user}/precious": (("", "precious"),),
    "figures {run}": (
        ("--index 99999", "image"),
        ("--index -1", "image"),
        ("--scorer nothing", "nothing"),
        ("--scorer mass", "mass"),
    ),
    "inspect {user}/photos/000.jpg": (("", "give either --run"),),
    "inspect {user}/nothing.jpg --run {run}": (("", "nothing.jpg"),),
    "inspect {user}/map.tsv --run {run}": (("", "map.tsv"),),
    "inspect {user}/photos --run {run}": (("", "photos"),),
    INSPECT: (
        ("--class nothing", "nothing"),
        ("--scorer nothing", "product"),
        ("--device nothing", "device"),
        ("--out {user}/photos/000.jpg", "000.jpg"),
        ("--out {user}/photos", "photos"),
        ("--out {place}/no/such/folder/p.png", "p.png"),
        ("--out {place}/p.docx", "docx"),
    ),
    "inspect {user}/photos/000.jpg --backbone {user}/backbone": (("--class red", "--class"),),
    "inspect {user}/photos/000.jpg --backbone {user}/nothing": (("", "nothing"),),
    "inspect {user}/photos/000.jpg --run {user}/small": (("", "not a run folder"),),
    TUNE: (
        ("--max-drop -1", "--max-drop"),
        ("--max-drop nan", "--max-drop"),
        ("--cost 2", "--cost"),
        ("--cost 0", "--cost"),
        ("--cost nan", "--cost"),
        ("--calibration 2", "--calibration must lie in 8"),
        ("--check 0", "--check must lie in 8"),
        ("--batch-size 0", "--batch-size must lie in"),
        ("--repeats 0", "--repeats must lie in"),
        ("--threads -1", "threads"),
        ("--size 13", "size"),
        ("--device tpu", "device"),
        ("--class-map {user}/nothing", "class map"),
    ),
    "tune {user}/head --images {user}/nothing --out {place}/t": (("", "nothing"),),
    "tune {user}/head --images {user}/photos --out {place}/t": (("", "images"),),
    "tune {user}/nothing --images {user}/large/val --out {place}/t": (("", "nothing"),),
    "tune {user}/head --images {user}/large/val": (
        ("--out {user}/map.tsv", "map.tsv"),
        ("--out {user}/large/val", "large/val"),
    ),
    EXPORT: (
        ("--cost 3", "cost"),
        ("--cost nan", "cost"),
        ("--cost 0.01", "cannot be met"),
        ("--batch-size 0", "--batch-size"),
        ("--batch-size 10000000", "--batch-size must lie in"),
        ("--size 13", "size"),
        ("--setting {user}/nothing", "nothing"),
        ("--setting {user}/map.tsv", "map.tsv"),
        ("--setting {user}/photos/000.jpg", "000.jpg"),
        ("--image {user}/nothing.jpg", "nothing.jpg"),
        ("--image {user}/map.tsv", "map.tsv"),
    ),
    "export {user}/head --out {place}/no/such/m.onnx": (("", "m.onnx"),),
    "export {user}/nothing --out {place}/m.onnx": (("", "nothing"),),
    "export {user}/head": (
        ("--out {user}/head/model.safetensors", "model.safetensors"),
        ("--out {user}/small", "small"),
    ),
    "bench --out {place}/b.json": (("--model-size huge", "size"), ("--backbone {user}/nothing", "nothing")),
    BENCH: (
        ("--reducer nothing", "reducer"),
        ("--dtype fp8", "dtype"),
        ("--mode slow", "mode"),
        ("--batch-size 0", "batch"),
        ("--batch-size -4", "batch"),
        ("--repeats -1", "repeats"),
        ("--seconds nan", "seconds"),
        ("--seconds -1", "seconds"),
        ("--threads -1", "threads"),
        ("--cost 7", "cost"),
        ("--device moon", "device"),
        ("--backbone {user}/head", "size"),
    ),
    "bench --quick --model-size tiny": (("--out {user}/small", "small"),),
    f"diagnose --backbone {{user}}/nothing {DATA} --out {{place}}/d": (("", "nothing"),),
    "diagnose --backbone {user}/backbone --train {user}/nothing --val {user}/small/val --out {place}/d": (
        ("", "nothing"),
    ),
    f"diagnose --backbone {{user}}/backbone {DATA}": (("--out {user}/precious", "precious"),),
    "dense {user}/backbone --train {user}/small --val {user}/small --out {place}/d": (
        ("--size 100000", "--size must lie in"),
        ("--steps 100000000000000000000", "--steps must lie in"),
        ("--seed 18446744073709551616", "--seed must lie in"),
    ),
    "learn {user}/head --method dynamicvit --images {user}/large/val --out {place}/l.safetensors": (
        ("--checks 1000000000000000000000000000000", "--checks must lie in"),
        ("--seed 18446744073709551616", "--seed must lie in"),
    ),
    "nothing": (("", "no such command"),),
}


def options() -> Iterator[Case]:
    for command, mistakes in OPTIONS.items():
        for more, expected in mistakes:
            text = f"{command} {more}".strip()
            yield Case(f"option: {text}", fixed(*text.split()), expected)


def bounds() -> Iterator[Case]:
    """Every option of every command that takes a number, with numbers beyond all bounds."""
    for command in app.registered_commands:
        assert command.callback is not None
        called = command.name or command.callback.__name__
        for name, kind in get_type_hints(command.callback, include_extras=True).items():
            for option in getattr(kind, "__metadata__", ()):
                if getattr(option, "callback", None) is not None:
                    option = (*(option.param_decls or ()), "--" + name.replace("_", "-"))[0]
                    for value in ("1" + "0" * 30, "-1" + "0" * 30):
                        arguments = (called, f"{option}={value}")
                        yield Case(f"bounds: {' '.join(arguments)}", fixed(*arguments), f"{option} must lie")
