"""Predicts unlabelled files with a trained model: rank 0 prepares the rows and writes the predictions, all ranks predict."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow
import pyarrow.parquet
from torch import nn

from snaketrain.config.schema.evaluation import Generate, generation_of
from snaketrain.data.loading.examples import TextExamples
from snaketrain.data.loading.training_data import Batch
from snaketrain.data.reading import report_unread
from snaketrain.evaluation.predicting import load_trained, predict
from snaketrain.evaluation.results import NOT_SHOWN, Rows, flat, report_for, write_csv
from snaketrain.evaluation.trained_model import TrainedModel
from snaketrain.extras.prediction.rows import ISSUES, prepare_unlabelled
from snaketrain.extras.prediction.settings import ReadInputs
from snaketrain.labels import label_kind
from snaketrain.runtime.strict_json import Json, JsonObject
from snaketrain.strategies.base import Strategy
from snaketrain.tasks.base import Columns, Modules, Task
from snaketrain.tasks.predicting_tokens import Generation, TokenPrediction, stop_at_end
from snaketrain.training.building import make_task
from snaketrain.training.state import TrainState

TEXTS = ("text", "text_pair")


def write_predictions(folder: Path, name: str, ids: list[str], table: pyarrow.Table, rows: Rows, facts: JsonObject) -> list[str]:
    """`table` has the texts in the order of `rows`. Returns the names of the files."""
    columns: dict[str, list[Json]] = {"id": list(ids)} | {text: table[text].to_pylist() for text in TEXTS if text in table.column_names}
    columns |= answers(rows, table["label"].to_pylist(), facts)
    folder.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / f"{name}.parquet")
    write_csv(folder / f"{name}.csv", columns)
    return [f"{name}.parquet", f"{name}.csv"]


def answers(rows: Rows, missing: list[Json], facts: JsonObject) -> dict[str, list[Json]]:
    """What the task predicted, as texts and numbers; `missing`: the column of labels, which is empty."""
    report = report_for(rows, {"label": missing}, facts)
    columns: dict[str, list[Json]] = {}
    if report:
        has_classes = label_kind(facts["label_kind"]).has_classes
        for name, cells in report.columns(report.labels(missing), rows).items():
            are_texts = (has_classes and name.startswith("predicted")) or (name in rows and rows[name].dtype.kind == "U")
            if name != "label":
                columns[name] = [*cells] if are_texts else numbers(cells)
        if said := report.left_out(scored=False):
            print(said, flush=True)
    left_out = NOT_SHOWN if report else ("ids", "label")
    return columns | {name: values.tolist() for name, values in flat(rows, left_out).items()}


def numbers(cells: list[str]) -> list[Json]:
    """As numbers, if all are."""
    try:
        return [float(cell) for cell in cells]
    except ValueError:
        return [*cells]


def load_state(trained: TrainedModel, folder: Path, pretrained: Path | None, strategy: Strategy) -> TrainState:
    """`pretrained`: the folder that the model is built from, before it gets the weights in `folder`."""
    task = make_task(trained.train)
    if isinstance(task, TokenPrediction):
        task.generate = None  # the inputs decide what is generated, and how
    return load_trained(task, trained.train, trained.model, pretrained, facts_of(trained, folder), folder, strategy)


def facts_of(trained: TrainedModel, folder: Path) -> JsonObject:
    return trained.facts | {"tokenizer_folder": str(folder)}


class Answering(Task):
    """A task around the one that a model was trained on: each example is a prompt, and its prediction the text that the model generates."""

    def __init__(self, task: TokenPrediction, module: nn.Module, settings: Generate, data: JsonObject):
        self.task, self.longest = task, getattr(module.config, "max_position_embeddings", None)
        self.generation = Generation(settings.model_dump(), module, stop_at_end(module, data), data)

    def outputs(self, modules: Modules, batch: Batch) -> list[str]:
        prompts = [tokens[given].tolist() for tokens, given in zip(batch["input_ids"], batch["attention_mask"] > 0, strict=True)]
        longest, answer = max(map(len, prompts)), 0 if self.generation.written else self.generation.settings.max_new_tokens
        if self.longest is not None and longest + answer > self.longest:
            raise SystemExit(
                f"the model has {self.longest} positions, but the longest text{' with an answer' if answer else ''} needs {longest + answer}: "
                f"shorten it{', or make max_new_tokens smaller' if answer else ''}."
            )
        return [self.generation.text(answer) for answer in self.generation.generate(modules["model"], prompts)]

    def predict(self, outputs: list[str], batch: Batch) -> Columns:
        return {"generated": outputs}

    def validation_epoch(self, modules: Modules, batches: Iterable[Callable[[], None]]) -> None:
        self.task.validation_epoch(modules, batches)  # which may put averaged weights in place


@dataclass(frozen=True)
class Predictor:
    """A trained model, and how its predictions are computed."""

    trained: TrainedModel
    folder: Path  # of the model, with its tokenizer
    state: TrainState
    batch_size: int | None = None  # at most, over all ranks; None: on each as in the evaluations during its training
    threads: int = 1
    beat: Callable[[], None] = lambda: None  # called after each batch

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
        for kind, count in found.issues.counts.items():
            print(f"{count:>9} {ISSUES[kind]}", *found.issues.examples.get(kind, []), sep=f"\n{'':10}", flush=True)
        return found.ids
