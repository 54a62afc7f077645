"""Predicts unlabelled files with a trained model: rank 0 prepares the rows and writes the predictions, all ranks predict."""

import csv
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow
import pyarrow.parquet

from snaketrain.config.schema import ReadInputs
from snaketrain.config.schema.evaluation import Generate, generation_of
from snaketrain.data.cells import DataIssues
from snaketrain.data.loading.examples import TextExamples
from snaketrain.data.reading import report_unread
from snaketrain.data.unlabelled import ISSUES, prepare_unlabelled
from snaketrain.evaluation.predicting import load_trained, predict
from snaketrain.evaluation.results import NOT_SHOWN, Rows, flat, report_for
from snaketrain.evaluation.trained_model import TrainedModel
from snaketrain.labels import label_kind
from snaketrain.runtime.strict_json import Json, JsonObject
from snaketrain.strategies.base import Strategy
from snaketrain.tasks.answering import Answering
from snaketrain.tasks.predicting_tokens import TokenPrediction
from snaketrain.training.building import make_task
from snaketrain.training.state import TrainState

TEXTS = ("text", "text_pair")


def write_predictions(folder: Path, name: str, ids: list[str], table: pyarrow.Table, rows: Rows, facts: JsonObject) -> list[str]:
    """`table` has the texts in the order of `rows`. Returns the names of the files."""
    columns: dict[str, list[Json]] = {"id": list(ids)} | {text: table[text].to_pylist() for text in TEXTS if text in table.column_names}
    columns |= answers(rows, table["label"].to_pylist(), facts)
    folder.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / f"{name}.parquet")
    with open(folder / f"{name}.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return [f"{name}.parquet", f"{name}.csv"]


def answers(rows: Rows, missing: list[Json], facts: JsonObject) -> dict[str, list[Json]]:
    """What the task predicted, as texts and numbers; `missing`: the column of labels, which is empty."""
    report = report_for(rows, {"label": missing}, facts)
    columns: dict[str, list[Json]] = {}
    if report:
        written = report.columns(report.labels(missing), rows)
        classes = "predicted" if label_kind(facts["label_kind"]).has_classes else None  # how columns of names of classes begin
        columns = {
            name: [*cells] if classes and name.startswith(classes) else numbers(cells) for name, cells in written.items() if name != "label"
        }
        if shortened := report.shortened(scored=False):
            print(shortened, flush=True)
    left_out = NOT_SHOWN if report else ("ids", "label")
    return columns | {name: values.tolist() for name, values in flat(rows, left_out).items()}


def numbers(cells: list[str]) -> list[Json]:
    """As numbers, if all are."""
    try:
        return [float(cell) for cell in cells]
    except ValueError:
        return [*cells]


@dataclass(frozen=True)
class Predictor:
    """A trained model, and how its predictions are computed."""

    trained: TrainedModel
    folder: Path  # of the model, with its tokenizer
    state: TrainState
    batch_size: int | None = None  # over all ranks; None: on each as many as in the evaluations during its training
    threads: int = 1
    beat: Callable[[], None] = lambda: None  # called after each batch

    @classmethod
    def load(
        cls,
        trained: TrainedModel,
        folder: Path,
        pretrained: Path | None,
        strategy: Strategy,
        batch_size: int | None,
        threads: int,
        beat: Callable[[], None] = lambda: None,
    ) -> "Predictor":
        """`pretrained`: the folder that the model is built from, before it gets the weights in `folder`."""
        task = make_task(trained.train)
        if isinstance(task, TokenPrediction):
            task.generate = None  # the inputs decide what is generated, and how
        state = load_trained(task, trained.train, trained.model, pretrained, facts_of(trained, folder), folder, strategy)
        return cls(trained, folder, state, batch_size, threads, beat)

    def predict_files(self, inputs: ReadInputs, files: list[Path], root: Path, output: Path, name: str) -> list[str]:
        """Write `<name>.parquet` and `<name>.csv` to the folder `output`; returns their names, on rank 0 alone."""
        strategy, prepared = self.state.strategy, output / f".{name}.arrow"
        state = self._answering(inputs) if inputs.asks_for_text(self.trained.data) else self.state
        ids: list[str] = []
        if strategy.rank == 0:
            ids = self._prepare(inputs, files, root, prepared, generates=state is not self.state)
        strategy.wait()
        examples = TextExamples(prepared, self.trained.facts["pad_token_id"])
        size, of_training = self.batch_size, self.trained.limits.over(strategy.data_parallel_size)
        limits = (size, self.trained.train.batch_tokens) if size else of_training
        _, rows = predict(state, examples, *limits, name, False, self.beat)
        if strategy.rank > 0:
            return []
        names = write_predictions(output, name, ids, examples.table, rows, self.trained.facts)
        prepared.unlink()
        print(f"{name}: {len(ids)} predictions -> {', '.join(str(output / each) for each in names)}", flush=True)
        return names

    def _answering(self, inputs: ReadInputs) -> TrainState:
        """The state with a task that answers prompts; the same state if its task does not generate and the data does not require it."""
        task, data = self.state.task, self.trained.data
        if not isinstance(task, TokenPrediction):
            if not (data.target or data.messages or inputs.generate):
                return self.state
            raise SystemExit(
                f"{self.folder}: its task {self.trained.train.task.use} is not derived from Seq2seq or CausalLm, so it generates no text. Leave `generate` out, or use a model that was trained by one of these."
            )
        settings = inputs.generate or generation_of(self.trained.train) or Generate()
        if self.state.rank == 0:
            print("generating by", ", ".join(f"{name} {value}" for name, value in settings if value is not None), flush=True)
        module = self.state.plain_modules()["model"]
        return replace(self.state, task=Answering(task, module, settings, facts_of(self.trained, self.folder)))

    def _prepare(self, inputs: ReadInputs, files: list[Path], root: Path, path: Path, generates: bool) -> list[str]:
        path.parent.mkdir(parents=True, exist_ok=True)
        names = self.trained.facts["label_names"]
        report_unread(files, inputs.reading(self.trained.data, generates), "the input")
        try:
            found = prepare_unlabelled(self.trained.data, inputs, files, root, self.folder, names, path, self.threads, generates)
        except ValueError as error:
            raise SystemExit(str(error)) from None
        report(found.issues)
        return found.ids


def facts_of(trained: TrainedModel, folder: Path) -> JsonObject:
    return trained.facts | {"tokenizer_folder": str(folder)}


def report(issues: DataIssues) -> None:
    for kind, count in issues.counts.items():
        print(f"{count:>9} {ISSUES[kind]}", *issues.examples.get(kind, []), sep=f"\n{'':10}", flush=True)
