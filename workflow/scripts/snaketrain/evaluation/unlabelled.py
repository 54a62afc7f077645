"""Predicts unlabelled files with a trained model: rank 0 prepares the rows and writes the predictions, all ranks predict."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from snaketrain.config.schema import ReadInputs
from snaketrain.data.loading.examples import TextExamples
from snaketrain.data.sources.data_issues import DESCRIPTIONS, DataIssues
from snaketrain.data.text.unlabelled import prepare_unlabelled
from snaketrain.evaluation.predicting import load_trained, predict
from snaketrain.evaluation.prediction_files import write_predictions
from snaketrain.evaluation.trained_model import TrainedModel
from snaketrain.strategies.base import Strategy
from snaketrain.training.building import make_task
from snaketrain.training.state import TrainState


@dataclass(frozen=True)
class Predictor:
    """A trained model, and how its predictions are computed."""

    trained: TrainedModel
    folder: Path  # of the model, with its tokenizer
    state: TrainState
    batch_size: int
    threads: int = 1
    beat: Callable[[], None] = lambda: None  # called after each batch

    @classmethod
    def load(
        cls,
        trained: TrainedModel,
        folder: Path,
        pretrained: Path | None,
        strategy: Strategy,
        batch_size: int,
        threads: int,
        beat: Callable[[], None] = lambda: None,
    ) -> "Predictor":
        """`pretrained`: the folder that the model is built from, before it gets the weights in `folder`."""
        if trained.data.target or trained.data.messages:
            raise SystemExit(
                f"{folder}: the model writes text, which is not predicted here yet. Load the folder with transformers, and call `generate`."
            )
        train, facts = trained.train, trained.facts | {"tokenizer_folder": str(folder)}
        state = load_trained(make_task(train), train, trained.model, pretrained, facts, folder, strategy)
        return cls(trained, folder, state, batch_size, threads, beat)

    def predict_files(self, inputs: ReadInputs, files: list[Path], root: Path, output: Path, name: str) -> list[str]:
        """Write `<name>.parquet` and `<name>.csv` to the folder `output`; returns their names, on rank 0 alone."""
        strategy, prepared = self.state.strategy, output / f".{name}.arrow"
        ids: list[str] = []
        if strategy.rank == 0:
            ids = self._prepare(inputs, files, root, prepared)
        strategy.wait()
        examples = TextExamples(prepared, self.trained.facts["pad_token_id"])
        _, rows = predict(self.state, examples, self.batch_size, self.trained.train.batch_tokens, name, False, self.beat)
        if strategy.rank > 0:
            return []
        names = write_predictions(output, name, ids, examples.table, rows, self.trained.facts)
        prepared.unlink()
        print(f"{name}: {len(ids)} predictions -> {', '.join(str(output / each) for each in names)}", flush=True)
        return names

    def _prepare(self, inputs: ReadInputs, files: list[Path], root: Path, path: Path) -> list[str]:
        path.parent.mkdir(parents=True, exist_ok=True)
        names = self.trained.facts["label_names"]
        try:
            found = prepare_unlabelled(self.trained.data, inputs, files, root, self.folder, names, path, self.threads)
        except ValueError as error:
            raise SystemExit(str(error)) from None
        report(found.issues)
        return found.ids


def report(issues: DataIssues) -> None:
    for kind, count in issues.counts.items():
        print(f"{count:>9} {DESCRIPTIONS[kind]}", *issues.examples.get(kind, []), sep=f"\n{'':10}", flush=True)
