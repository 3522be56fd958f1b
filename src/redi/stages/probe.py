"""The probe stage: the linear classifier, trained once on dense features. No image is read."""

from dataclasses import asdict
from typing import Any

from redi import artifacts
from redi.probe import LinearProbe
from redi.progress import say
from redi.run import Run
from redi.stages.vocabulary import vocabulary_done


def probe_key(run: Run) -> dict[str, Any]:
    return run.key(
        "probe",
        "train",
        features=run.digest("features"),
        settings=asdict(run.config.probe),
        seed=run.config.seed,
        classes=len(run.training.class_names),
    )


def probe_done(run: Run) -> bool:
    return vocabulary_done(run) and run.current("probe", probe_key(run))


def train_probe(run: Run) -> None:
    """On the main process alone: the features of ImageNet-1K are 3.9 GB and train in minutes."""
    if run.ranks.is_main:
        stored = run.load("features")
        probe = _new_probe(run)
        say(f"  training the probe on {len(stored['labels'])} features")
        probe.fit(stored["features"].to(run.device), stored["labels"].to(run.device))
        artifacts.save(
            run.path("probe"),
            {"weight": probe.weight_, "bias": probe.bias_},
            probe_key(run),
            steps=probe.steps_,
            loss=probe.loss_,
            images=len(stored["labels"]),
        )
    run.ranks.wait()


def load_probe(run: Run) -> LinearProbe:
    stored = run.load("probe")
    probe = _new_probe(run)
    probe.weight_, probe.bias_ = stored["weight"].to(run.device), stored["bias"].to(run.device)
    return probe


def _new_probe(run: Run) -> LinearProbe:
    settings = run.config.probe
    return LinearProbe(
        len(run.training.class_names),
        settings.epochs,
        settings.batch_size,
        settings.learning_rate,
        settings.weight_decay,
        settings.min_steps,
        run.config.seed,
    )
