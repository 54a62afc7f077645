"""Runs a trained model on prepared sets and keeps its scores, so that another plot or interval does not need the model again."""

import os
import shutil
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from snaketrain.config.schema import Evaluate, Model, Train
from snaketrain.config.schema.data import SLICE
from snaketrain.runtime.manifests import Manifest, digest, file_digest, read_if_intact, write_checked
from snaketrain.runtime.stages import JobSettings, by_name
from snaketrain.runtime.strict_json import Json, JsonObject

if TYPE_CHECKING:
    from snaketrain.evaluation.results import Measured, Rows
    from snaketrain.strategies.base import Strategy
    from snaketrain.training.hangs import StallWatchdog

REPORT_ONLY = ("evaluate.confidence", "evaluate.bins", "set.checkpoints")  # settings that do not affect the scores of a model


@dataclass(frozen=True)
class ScoredSet:
    """A split of prepared data on which a model is evaluated."""

    name: str
    prepared: Manifest
    split: str  # in the prepared data

    def table(self, examples: int) -> dict[str, list[Json]]:
        """Texts, labels and slices, if the prepared data has one row for each example."""
        from snaketrain.data.loading import open_table, split_files

        files = split_files(self.prepared, self.split)
        if not files[0].is_file():
            return {}
        table = open_table(files)
        kept = ("text", "text_pair", "target", "label")
        names = [name for name in table.column_names if name in kept or name.startswith(SLICE)]
        if table.num_rows == examples:
            return {name: table[name].to_pylist() for name in names}
        if any(name.startswith(SLICE) for name in names):
            print(
                f"{self.name}: data.slices has no effect, since the task does not measure its {table.num_rows:,} rows one by one.",
                flush=True,
            )
        return {}

    @property
    def files(self) -> dict[str, str]:
        """The prepared files of the split, with their digests; none of data of a user's own class."""
        return {name: sha for name, sha in self.prepared.files.items() if Path(name).name == f"{self.split}.arrow"}


@dataclass(frozen=True)
class Scoring:
    """How the models of a training are evaluated. All ranks call the same methods; only rank 0 writes."""

    args: Namespace
    given: JobSettings
    training: Manifest
    data: Manifest  # on which it was trained
    fetched: Manifest | None  # the model that it started from

    @property
    def output(self) -> Path:
        return Path(self.args.output).parent

    @cached_property
    def evaluate(self) -> Evaluate:
        return Evaluate.model_validate(self.given.settings["evaluate"])

    def folder(self, weights: Mapping[str, str], each: ScoredSet) -> Path:
        """Where the scores are, by all that they depend on; `weights`: digests that identify the model's weights."""
        settings = {name: value for name, value in by_name(self.given.settings).items() if name not in REPORT_ONLY}
        model = self.fetched and self.fetched.content
        read = [self.training.settings, self.training.facts["precision"], dict(weights), self.data.content, model]
        key = digest(settings, self.given.code, self.args.device, *read, each.split, each.prepared.content)
        return self.output / "scores" / key

    def stored(self, weights: Mapping[str, str], each: ScoredSet) -> JsonObject | None:
        """The metrics, if they and the rows beside them are as they were written."""
        file = self.folder(weights, each) / f"{each.name}.json"
        instead = "the model is evaluated again"
        found, rows = read_if_intact(file, instead, of=f"{file.parent.name}/{each.name}"), file.with_suffix(".npz")
        if found and not (rows.is_file() and file_digest(rows) == found["rows"]):
            print(f"warning: {rows}: is not what was written; {instead}", file=sys.stderr, flush=True)
            return None
        return found

    def keep_only(self, *wanted: tuple[Mapping[str, str], ScoredSet]) -> None:
        """Remove the scores of other weights and settings, which would pile up. Rank 0 calls it at the end of its stage."""
        kept = {self.folder(weights, each) for weights, each in wanted}
        for folder in set((self.output / "scores").iterdir()) - kept:
            shutil.rmtree(folder, ignore_errors=True)

    def read(self, weights: Mapping[str, str], each: ScoredSet) -> tuple["Measured", "Rows"]:
        import numpy as np

        folder, found = self.folder(weights, each), self.stored(weights, each)
        if found is None:
            raise SystemExit(f"{folder}: the scores were changed since the evaluation began. Start snakemake again: it evaluates again.")
        measured: Measured = {"examples": found["examples"], "metrics": found["metrics"], "baselines": found["baselines"]}
        return measured, dict(np.load(folder / f"{each.name}.npz"))

    def write_results(self, weights: Mapping[str, str], each: ScoredSet) -> list[str]:
        """Write what the scores show, on rank 0 alone; returns the names of the files."""
        from snaketrain.evaluation.results import write_results

        measured, rows = self.read(weights, each)
        table, facts, evaluate = each.table(measured["examples"]), self.data.facts, self.evaluate
        run, split = self.args.run_name, each.name
        write_results(self.output, run, split, measured, rows, table, facts, evaluate.confidence, evaluate.bins, each.files)
        files = [f"{each.name}_results.json", f"{each.name}_plots.png"]
        return [*files, f"{each.name}_predictions.csv"] if len(rows) > 1 else files

    # --- with the model

    @cached_property
    def train(self) -> Train:
        return self.evaluate.applied_to(Train.model_validate(self.training.settings["train"]))

    @cached_property
    def model(self) -> Model:
        return Model.model_validate(self.training.settings["model"])

    @cached_property
    def strategy(self) -> "Strategy":
        # transformers would warn of missing weights, which are loaded later
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

        from snaketrain.training.building import start_strategy

        # with the training's precision, whatever `auto` would mean here
        return start_strategy(self.train, self.args.device, self.training.facts["precision"])

    @cached_property
    def watch(self) -> "StallWatchdog":
        from snaketrain.training.hangs import StallWatchdog

        return StallWatchdog(self.output / "stalled", self.strategy, self.args.stall_seconds)

    def score(self, folder: Path, weights: Mapping[str, str], sets: Sequence[ScoredSet], name: str) -> None:
        """Run the model in `folder` on the sets; `name`: of the model, for the progress bar."""
        import numpy as np

        from snaketrain.data.loading.examples import facts_of, open_split
        from snaketrain.data.loading.loader import Loader
        from snaketrain.evaluation.predicting import baselines, load_trained, predict
        from snaketrain.training.batch_limits import BatchLimits
        from snaketrain.training.building import add_metrics, make_task

        train, strategy, watch = self.train, self.strategy, self.watch
        task = make_task(train, self.data.facts)
        add_metrics(task, self.evaluate.metrics, self.data.facts, train.task.use, "evaluate.metrics")
        pretrained = self.fetched.model_files if self.fetched else None
        loader = Loader.of(self.args.loader_workers, pin_memory=strategy.device.type == "cuda")
        state = load_trained(task, train, self.model, pretrained, facts_of(self.data), folder, strategy)
        ranks, size = strategy.data_parallel_size, self.evaluate.batch_size
        limits = (size, train.batch_tokens) if size else BatchLimits.of_finished(self.training.folder, train).over(ranks)
        for each in sets:
            examples, scores = open_split(each.prepared, each.split, train), self.folder(weights, each)
            measured = len(examples) > 0 and not withheld(self.data.facts, each)
            title = f"{name}: {each.name}"
            metrics, rows = predict(state, examples, *limits, title, measured, watch.beat, loader)
            if strategy.rank == 0:
                scores.mkdir(parents=True, exist_ok=True)
                save: Callable[..., None] = np.savez  # whose type takes the names of rows for its options
                save(scores / f"{each.name}.npz", **rows)
                table = each.table(len(examples))
                constant = baselines(task, rows, table, self.data.facts) if measured else {}
                found = {"examples": len(examples), "metrics": metrics, "baselines": constant}
                made = {"of": f"{scores.name}/{each.name}", "rows": file_digest(scores / f"{each.name}.npz")}
                write_checked(scores / f"{each.name}.json", found | made)  # written last: it marks both files as complete
            watch.beat()

    def close(self) -> None:
        self.strategy.finish()
        self.watch.close()


def withheld(facts: JsonObject, each: ScoredSet) -> bool:
    """Whether the training data has labels and this set has none."""
    trained: bool = facts.get("splits", {}).get("train", {}).get("labelled", False)
    labelled: bool = each.prepared.facts.get("splits", {}).get(each.split, {}).get("labelled", True)
    return trained and not labelled
