"""The probe stage: it trains the linear classifier once, on stored dense features."""

from dataclasses import asdict
from typing import Any

from redi.probe import LinearProbe
from redi.runs.folder import Run
from redi.runs.progress import say
from redi.stages.stage import Stage


def probe_key(run: Run) -> dict[str, Any]:
    return run.key(
        "probe",
        "train",
        features=run.digest("features"),
        settings=asdict(run.config.probe),
        seed=run.config.seed,
        classes=len(run.training.class_names),
    )


def train_probe(run: Run) -> None:
    """Train on the main process alone: the features of ImageNet-1K are 3.9 GB and train in minutes."""
    if run.ranks.is_main:
        stored = run.load("features")
        recipe = asdict(run.config.probe)
        recipe.pop("features")
        probe = LinearProbe(len(run.training.class_names), **recipe, seed=run.config.seed)
        say(f"  training the probe on {len(stored['labels'])} features")
        probe.fit(stored["features"].to(run.device), stored["labels"].to(run.device))
        tensors = {"weight": probe.weight_, "bias": probe.bias_}
        notes = {"steps": probe.steps_, "loss": probe.loss_, "images": len(stored["labels"])}
        run.save("probe", tensors, probe_key(run), **notes)
    run.ranks.wait()


def load_probe(run: Run) -> LinearProbe:
    stored = run.load("probe")
    return LinearProbe.fitted(stored["weight"].to(run.device), stored["bias"].to(run.device))


STAGE = Stage(
    name="probe", artefacts=lambda run: {"probe": probe_key(run)}, work=train_probe, passes=lambda run: "no pass"
)
