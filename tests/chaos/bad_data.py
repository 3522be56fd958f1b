"""Images, shards, data sets and class maps that are missing, damaged or something else."""

import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from io import BytesIO
from pathlib import Path

from chaos.case import Case, fixed
from chaos.ground import Ground
from small_run import COLOURS


def _small_data(ground: Ground, place: Path) -> Path:
    shutil.copytree(ground.user / "small", place / "data")
    return place / "data"


def _run_on(ground: Ground, place: Path, data: Path, *more: str) -> list[str]:
    return [
        *("run", "--config", str(ground.config("small")), "--out", str(place / "o")),
        *("--train", str(data / "train"), "--val", str(data / "val"), *more),
    ]


#: Contents of files that are called .jpg and are not pictures.
NO_IMAGES = {
    "empty files": b"",
    "text": b"not an image",
    "zeros": bytes(4000),
    "half a JPEG": b"\xff\xd8\xff\xe0\0",
    "EPS": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n%%EOF\n",
}


def _pictures(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.jpg"))


def _fill(folder: Path, content: bytes) -> None:
    for file in _pictures(folder):
        file.write_bytes(content)


def _empty(folder: Path) -> None:
    for file in _pictures(folder):
        file.unlink()


def _flatten(folder: Path) -> None:
    for number, file in enumerate(_pictures(folder)):
        file.rename(folder / f"{number}.jpg")
    for name in COLOURS:
        (folder / name).rmdir()


def _loop(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.symlink_to(folder)


def _become_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("text")


def _leave_one_class(data: Path) -> None:
    for split in ("train", "val"):
        for name in list(COLOURS)[1:]:
            shutil.rmtree(data / split / name)


def _dangle(file: Path) -> None:
    file.unlink()
    file.symlink_to("nowhere")


def data() -> Iterator[Case]:
    """Images that are missing, damaged or not images."""

    def case(name: str, spoil: Callable[[Path], object], expected: str, *more: str) -> Case:
        def make(ground: Ground, place: Path) -> list[str]:
            data = _small_data(ground, place)
            spoil(data)
            return _run_on(ground, place, data, *more)

        return Case(f"data: {name}", make, expected)

    yield case("one class", _leave_one_class, "fewer than two classes")
    yield case("a class that training lacks", lambda d: shutil.rmtree(d / "train" / "red"), "absent from training")
    for split in ("train", "val"):
        for name, spoil, expected in (
            ("empty", _empty, "no images"),
            ("a file", _become_file, split),
            ("flat", _flatten, split),
            ("a loop", _loop, split),
            *((what, partial(_fill, content=content), "decoded") for what, content in NO_IMAGES.items()),
        ):
            yield case(f"{split} is {name}", lambda d, spoil=spoil, split=split: spoil(d / split), expected)  # type: ignore[misc]
        first = Path(split, "amber", "000.jpg")
        for name, content in NO_IMAGES.items():
            for workers in ("0", "2"):
                strict = ("--strict", "--workers", workers)
                write = partial(lambda d, file, content: (d / file).write_bytes(content), file=first, content=content)
                yield case(f"strict with {name} in {split}, {workers} workers", write, "--strict", *strict)
        dangle = partial(lambda d, file: _dangle(d / file), file=first)
        yield case(f"strict with a dangling link in {split}", dangle, "strict", "--strict")


def pictures() -> Iterator[Case]:
    """Single pictures to inspect."""

    def case(name: str, write: Callable[[Path], object], file: str = "p.jpg") -> Case:
        def make(ground: Ground, place: Path) -> list[str]:
            write(place / file)
            return ["inspect", str(place / file), "--backbone", str(ground.user / "backbone")]

        return Case(f"picture: {name}", make, "p")

    for name, content in NO_IMAGES.items():
        yield case(name, partial(Path.write_bytes, data=content))
    yield case("a pipe", os.mkfifo)
    yield case("a folder", Path.mkdir)
    yield case("a dangling link", lambda p: p.symlink_to("nowhere"))
    yield case("a loop", lambda p: p.symlink_to(p))
    yield case("a device", lambda p: p.symlink_to("/dev/zero"))
    for letters in ("\x1b[31m", "\r", "\n", "\x07", os.fsdecode(b"\xff\xfe")):
        yield case(f"a name with {letters!r}", partial(Path.write_bytes, data=b"text"), f"p{letters}.jpg")


def shards() -> Iterator[Case]:
    def case(name: str, members: list[tuple[str, bytes]] | bytes, expected: str) -> Case:
        def make(ground: Ground, place: Path) -> list[str]:
            (place / "s").mkdir()
            if isinstance(members, bytes):
                (place / "s" / "0.tar").write_bytes(members)
            else:
                picture = (ground.user / "photos" / "000.jpg").read_bytes()
                with tarfile.open(place / "s" / "0.tar", "w") as shard:
                    for member, content in members:
                        info = tarfile.TarInfo(member)
                        content = picture if content == b"picture" else content
                        info.size = len(content)
                        shard.addfile(info, BytesIO(content))
            return [
                *("run", "--config", str(ground.config("small")), "--out", str(place / "o")),
                *("--train", str(place / "s"), "--val", str(ground.user / "val-shards")),
            ]

        return Case(f"shard: {name}", make, expected)

    yield case("empty", b"", "0.tar")
    yield case("text", b"not a tar file" * 100, "0.tar")
    yield case("zeros", bytes(10240), "images")
    yield case("no labels", [("0.jpg", b"picture")], "no label")
    yield case("two labels of one key", [("0.jpg", b"picture"), ("0.cls", b"0"), ("0.cls", b"1")], "two labels")
    yield case("labels alone", [("0.cls", b"3")], "images")
    yield case("a label of 7 digits", [("0.jpg", b"picture"), ("0.cls", b"1234567")], "class number")
    yield case("the label 999999", [("0.jpg", b"picture"), ("0.cls", b"999999")], "class number")
    yield case("one class", [("0.jpg", b"picture"), ("0.cls", b"red")], "class")
    yield case("an empty label", [("0.jpg", b"picture"), ("0.cls", b"")], "class")

    def truncated(ground: Ground, place: Path) -> list[str]:
        shutil.copytree(ground.user / "train-shards", place / "s")
        os.truncate(place / "s" / "0.tar", 5000)
        return [
            *("run", "--config", str(ground.config("small")), "--out", str(place / "o")),
            *("--train", str(place / "s"), "--val", str(ground.user / "val-shards")),
        ]

    yield Case("shard: truncated", truncated, "0.tar")


def hub() -> Iterator[Case]:
    """Data sets of the ``datasets`` library, saved to disk by hand as arrow files would be."""

    def case(name: str, files: dict[str, str], expected: str) -> Case:
        def make(ground: Ground, place: Path) -> list[str]:
            for file, text in files.items():
                (place / "d").mkdir(exist_ok=True)
                (place / "d" / file).write_text(text)
            return [
                *("run", "--config", str(ground.config("small")), "--out", str(place / "o")),
                *("--train", str(place / "d"), "--val", str(place / "d")),
            ]

        return Case(f"dataset: {name}", make, expected)

    yield case("no data files", {"dataset_info.json": "{}", "state.json": "{}"}, "d")
    yield case("broken information", {"dataset_info.json": "x", "state.json": "{}"}, "d")
    yield case("broken state", {"dataset_info.json": "{}", "state.json": "[]"}, "d")
    for what, expected in (("null-image", "#"), ("huge-label", "label"), ("foreign-path", "#"), ("no-label", "label")):
        arguments = ("--train", f"{{user}}/hub/{what}", "--val", f"{{user}}/hub/{what}", "--strict")
        yield Case(
            f"dataset: {what}",
            fixed("run", "--config", "{user}/small.toml", "--out", "{place}/o", *arguments),
            expected,
        )


def maps() -> Iterator[Case]:
    def case(name: str, content: bytes, expected: str) -> Case:
        def make(ground: Ground, place: Path) -> list[str]:
            (place / "map").write_bytes(content)
            out = ["--out", str(place / "o"), "--class-map", str(place / "map")]
            return ["run", "--config", str(ground.config("workers")), *out]

        return Case(f"class map: {name}", make, expected)

    yield case("empty", b"", "does not name the folder")
    yield case("one column", b"amber\nblue\n", "cannot be read")
    yield case("not text", b"\xff\xfe\x00\x01", "cannot be read")
    yield case("unknown class", b"amber\tnothing\nblue\t1\ngreen\t2\nred\t3", "which the head lacks")
    yield case("number too large", b"amber\t99\nblue\t1\ngreen\t2\nred\t3", "which the head lacks")
    yield case("negative number", b"amber\t-1\nblue\t1\ngreen\t2\nred\t3", "which the head lacks")
    yield case("a folder is missing", b"amber\t1\nblue\t2\n", "does not name the folder")
    yield case("broken JSON", b"{", "cannot be read")
    yield case("a JSON list", b"{[]}", "cannot be read")
