"""Files of learned reducers that are not ours, damaged, forged or of another model."""

from collections.abc import Iterator
from pathlib import Path

from chaos.case import Case, fixed

LEARN = "learn {{user}}/head --method protected-learned --images {{user}}/large/val --out {{user}}/learned/{}"
LEARN_LITTLE = "--limit 32 --held 16 --steps 2 --checks 1 --batch-size 8 --cost 0.7 --workers 0"
#: What reads or replaces a learned file.
COMMANDS = (
    f"{LEARN} {LEARN_LITTLE}",
    "compare {{run}} --reducer {{user}}/learned/{} --cost 0.7 --workers 0",
    "export {{user}}/head --reducer {{user}}/learned/{} --cost 0.7 --out {{place}}/m.onnx",
)
#: What `redi learn` says of a file that it may not replace: that of the user, and that of another training.
FOREIGN, OTHER = "was not written by redi", "another training"
#: By kind of file: what `redi learn` says, and what a reader says. :func:`write_learned_files` makes them.
FILES = {
    "own-weights": (FOREIGN, "no learned reducer"),
    "text": (FOREIGN, "no learned reducer"),
    "half": (FOREIGN, "no learned reducer"),
    "no-bytes": (FOREIGN, "no learned reducer"),
    "flipped": (OTHER, "damaged"),
    "forged-grid": (FOREIGN, "no learned reducer"),
    "grid-of-terabytes": (OTHER, "lacks parameters"),
    "nan": (OTHER, "not finite"),
    "other-model": (OTHER, "was learned on"),
}


def learned(kind: str) -> Iterator[Case]:
    """A file of one kind, given to each command; the first command is another one for each kind."""
    turn = list(FILES).index(kind)
    for number in range(len(COMMANDS)):
        command = COMMANDS[(turn + number) % len(COMMANDS)]
        expected = FILES[kind][not command.startswith("learn")]
        arguments = command.format(f"{kind}.safetensors").split()
        yield Case(f"learned: {arguments[0]} with {kind}", fixed(*arguments), expected)


def write_learned_files(user: Path) -> None:
    """Part of the ground: ``whole.safetensors``, and one file of each kind."""
    from learned_files import write_learned
    from redi.backbone import load_backbone
    from redi.records import artifacts

    folder, head = user / "learned", load_backbone(user / "head")
    folder.mkdir()

    def file(kind: str) -> Path:
        return folder / f"{kind}.safetensors"

    write_learned(file("whole"), head, "patchmerger")
    write_learned(file("other-model"), load_backbone(user / "backbone"), "patchmerger")
    whole = file("whole").read_bytes()
    file("own-weights").write_bytes((user / "head" / "model.safetensors").read_bytes())
    file("text").write_text("ten years of work")
    file("half").write_bytes(whole[: len(whole) // 2])
    file("no-bytes").touch()
    file("flipped").write_bytes(whole[:-1] + bytes([whole[-1] ^ 0x10]))
    for kind, grid in (("forged-grid", (10**6, 10**6)), ("grid-of-terabytes", (4096, 4096))):
        write_learned(file(kind), head, "patch-slimming")
        tensors, manifest = artifacts.load(file(kind))
        manifest["notes"]["training"]["grid"] = grid
        artifacts.save(file(kind), tensors, manifest["key"], **manifest["notes"])
    tensors, manifest = artifacts.load(file("whole"))
    next(iter(tensors.values())).flatten()[0] = float("nan")
    artifacts.save(file("nan"), tensors, manifest["key"], **manifest["notes"])
