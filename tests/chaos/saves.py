"""Save one model over another, kill it, and see that the folder holds the one or the other, or says that it is cut off.

The children that save rename and remove slowly, so that many kills hit the exchange of the files.
"""

import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from time import sleep

import torch

from chaos.commands import Command, Outcome, run
from chaos.ground import Ground
from chaos.kills import Tally
from redi.deploy import Accelerated
from redi.records.artifacts import tensor_digest

#: Seconds before every rename and every removal.
SLOW = 0.02
#: Share of the folders that hold no model before the first save.
NEW = 0.2
REFUSALS = ("save the model again", "holds no accelerated model", "config.json")


def killed_saves(ground: Ground, kills: int, seed: int) -> Tally:
    """Each folder sees some killed saves, is read after each, and is repaired by a save that nothing disturbs."""
    draw, tally = random.Random(f"{seed} saves"), Tally()
    models = [ground.user / "saved" / name for name in ("one", "other")]
    answers = [_answer(model).stdout for model in models]
    folder = ground.fresh("saves") / "whole"
    _, seconds = (run(_save(model, folder)).seconds for model in reversed(models))  # the second is a save over a save
    if not all(answers) or len(set(answers)) < 2 or _answer(folder).stdout != answers[0]:
        return Tally(faults=["saves: the undisturbed save failed"])
    while tally.tried < kills and not tally.faults:
        folder = ground.fresh("saves") / "model"
        if draw.random() >= NEW:
            run(_save(draw.choice(models), folder))
        for _ in range(draw.randint(1, 3)):
            command = Command(_save(draw.choice(models), folder))
            command.wait(draw.uniform(0, seconds))
            tally.tried += command.kill()
            if (ended := command.finish()).code not in (0, -signal.SIGKILL):
                tally.faults.append(f"saves: {ended}")
            left = _answer(folder)
            tally.compared += left.code == 0
            if left.fault or (left.stdout not in answers and not any(text in left.stderr for text in REFUSALS)):
                tally.faults.append(f"saves: after a kill it says {left}")
        last = draw.randrange(2)
        repaired = run(_save(models[last], folder))
        tally.compared += 1
        if repaired.code != 0 or _answer(folder).stdout != answers[last] or [*folder.glob(".*")]:
            tally.faults.append(f"saves: {folder} is not repaired: {repaired}")
    return tally


def _save(model: Path, folder: Path) -> Callable[[], None]:
    def work() -> None:
        loaded = Accelerated.from_pretrained(model)
        sys.addaudithook(lambda event, _: sleep(SLOW) if event in ("os.rename", "os.remove", "os.rmdir") else None)
        loaded.save_pretrained(folder)

    return work


def _answer(folder: Path) -> Outcome:
    """What the model in a folder says of a picture."""

    def work() -> None:
        model = Accelerated.from_pretrained(folder)
        pixels = torch.randn(1, 3, 112, 112, generator=torch.Generator().manual_seed(0))
        print(model.setting.cost, tensor_digest(dict(model(pixels))))

    return run(work)


def write_saved_models(user: Path) -> None:
    """Part of the ground: two models of one kind with other weights and another cost each."""
    from families import scramble
    from redi.deploy import accelerate

    for seed, (name, cost) in enumerate((("one", 0.7), ("other", 0.8))):
        model = accelerate(user / "head", cost=cost)
        scramble(model.backbone.model, seed)
        model.save_pretrained(user / "saved" / name)
