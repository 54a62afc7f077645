"""A run of the configuration with the data that the workflow has prepared, to be trained or looked at in a notebook."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from snaketrain.config.files import read_configuration
from snaketrain.config.schema import Model, Train
from snaketrain.data.loading.examples import Splits, open_splits
from snaketrain.orchestration.pipeline import Pipeline
from snaketrain.runtime.manifests import Manifest, read_manifest


@dataclass(frozen=True)
class OpenedRun:
    """What `Trainer.from_settings` takes."""

    train: Train
    model: Model
    data: Splits
    weights: Path | None  # the folder of the pretrained model
    initial_weights: Path | None


def open_run(name: str, configuration: str | Path = "config/config.yaml") -> OpenedRun:
    """In the folder in which the workflow runs, after the stages before the training."""
    pipeline = Pipeline(read_configuration([configuration]), reads_files=False)
    training = pipeline.stages["train_model"]
    training.check(name)
    made = {role: pipeline.manifest(*job) for role, job in training.reads(name).items()}
    if missing := [path for path in made.values() if not Path(path).exists()]:
        # files to make come first: --configfile would take them for further configurations
        words = [".venv/bin/snakemake", *missing, "--profile", "profiles/local", "--configfile", str(configuration)]
        raise FileNotFoundError(f"{missing[0]}: the workflow has not made it yet. Run: {shlex.join(words)}")
    read = {role: read_manifest(path) for role, path in made.items()}
    run = pipeline.runs[name]
    return OpenedRun(run.train, run.model, open_splits(read["data"], run.train), files(read.get("model")), files(read.get("initial")))


def files(fetched: Manifest | None) -> Path | None:
    return fetched.model_files if fetched else None
