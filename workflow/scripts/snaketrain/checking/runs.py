"""All checks of runs by effect. Runs share most settings: each combination is tried once.

`python -m snaketrain.checking.runs`: runs as JSON on stdin, a line of JSON on stdout for each attempt and each problem. A process of its
own, since the workflow does not import torch, and since what a user wrote may print, hang or end it.
"""

import faulthandler
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TextIO, TypeVar

import torch
from pydantic import BaseModel
from torch import nn

from snaketrain.checking import SAYS_WHERE, Findings, Unknown
from snaketrain.checking.calls import check_calls, hook_problems
from snaketrain.checking.optimization import check_rates, pattern_problems
from snaketrain.checking.planned import NotPlannable, PlannedModel, fetched_or_local, planned_model
from snaketrain.checking.trying import Sample, built, sample_of, step, tried
from snaketrain.config.references import load
from snaketrain.config.schema import Settings, Use
from snaketrain.config.schema.base import CONTRADICTIONS_LATER
from snaketrain.data.cells import BadData
from snaketrain.orchestration.own_files import references, uses_in
from snaketrain.runtime.loaded_code import is_own
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.strategies.shards import named_state
from snaketrain.tasks.base import Task
from snaketrain.tasks.metrics import metrics_of_settings
from snaketrain.training.building import add_metrics
from snaketrain.training.callbacks import Callback
from snaketrain.training.optimizers import one_optimizer
from snaketrain.training.trainer import trainer_class

Made = TypeVar("Made")
Trained = tuple[Task, PlannedModel, dict[str, nn.Module]]
OF_NAMED_LABELS = "class_weights"  # an argument that names classes
POSITION_TABLES = ("position_embeddings", "wpe", "embed_positions")


def size_problems(run: Settings, module: nn.Module, facts: JsonObject) -> Iterator[str]:
    yield from _positions(run, module)
    embedding = getattr(module, "get_input_embeddings", lambda: None)()
    tokens, vocabulary = getattr(embedding, "num_embeddings", 0), facts.get("vocab_size")
    if tokens and vocabulary and tokens < vocabulary:
        given = "vocab_size" in run.model.arguments
        where, remedy = (
            ("model.arguments.vocab_size", "Remove it") if given else ("data.tokenizer", "Name the tokenizer that belongs to model.source")
        )
        yield f"{where}: the tokenizer has {vocabulary} tokens, but the model an embedding for {tokens}. {remedy}."


def _positions(run: Settings, module: nn.Module) -> Iterator[str]:
    """A model whose positions have no table, such as T5, has no limit."""
    limit = positions_of(module)
    data = run.data
    of_texts = None if data.by_class else data.max_length  # the items of a dataset class are as long as it makes them
    lengths = {"data.max_length": of_texts, "data.max_target_length": data.max_target_length if data.target else None}
    if run.train.block_length is not None:
        lengths = {"train.block_length": run.train.block_length}
    for setting, length in lengths.items():
        if limit and length and length > limit:
            or_model = "" if run.model.source else ", or raise model.arguments.max_position_embeddings"
            yield f"{setting}: is {length}, but the model has {limit} positions. Set {setting}: {limit}{or_model}."


def positions_of(module: nn.Module) -> int | None:
    """How many tokens a text may have: the rows of its table of positions, or what its configuration was trained with."""
    config = getattr(module, "config", None)
    declared = getattr(config, "max_position_embeddings", None)
    if (
        not isinstance(declared, int)
        or declared < 1
        or (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default") != "default"
    ):
        return None
    for name, part in module.named_modules():
        if name.rpartition(".")[2] in POSITION_TABLES and isinstance(part, nn.Embedding):
            kept = part.padding_idx + 1 if part.padding_idx is not None else getattr(part, "offset", 0)  # RoBERTa's and BART's first rows
            return part.num_embeddings - kept
    return declared


def check(runs: Mapping[str, Settings], findings: Findings, results: Path = Path("results"), untried: Collection[str] = ()) -> None:
    """`results`: where prepared data and fetched models are looked for; `untried`: runs that are known to be wrong."""
    checks = Checks(findings, results)
    for name, run in runs.items():
        findings.run = name
        checks.check(run, tries=name not in untried)


class Checks:
    def __init__(self, findings: Findings, results: Path):
        self.findings, self.results = findings, results
        self.done: dict[str, tuple[Any, list[str]]] = {}  # what was found out for a combination of settings, and its problems

    def once(self, what: str, find_out: Callable[[], Made], *settings: object) -> Made:
        """`settings`: those on which the result depends."""
        key = what + json.dumps([each.model_dump(mode="json") if isinstance(each, BaseModel) else each for each in settings], default=str)
        if key not in self.done:
            before = len(self.findings.problems)
            found = find_out()
            self.done[key] = found, self.findings.problems[before:]
        else:
            self.findings.problems.extend(self.done[key][1])  # of this run as well
        return self.done[key][0]

    def check(self, run: Settings, tries: bool = True) -> None:
        train = run.train
        self.findings.begin()
        named = [*references(run)], run.model, train.metrics, run.evaluate.metrics, run.data.label, run.data.label_kind
        self.once("calls", lambda: check_calls(run, self.findings, self.results), *named)
        if not tries:
            return
        for number, callback in enumerate(train.callbacks):
            self.once("callback", partial(self.callback, f"train.callbacks.{number}.use", callback), number, callback)
        if train.trainer:
            self.once("trainer", lambda: self.trainer(run), train.trainer)
        sample = self.sample(run)
        rates = train.model_dump(
            mode="json", include={"schedule", "groups", "learning_rate", "warmup", "steps", "epochs", "batch_size", "batch_tokens"}
        )
        self.once("rates", lambda: check_rates(run, sample.steps if sample else None, self.findings), rates)
        optimizers = {"train.optimizer": train.optimizer} | {
            f"train.groups.{n}.optimizer": g.optimizer for n, g in enumerate(train.groups) if g.optimizer
        }
        made = [self.once("optimizer", partial(self.optimizer, run, where, use), where, use) for where, use in optimizers.items()]
        if sample is None:
            return
        model = self.once("model", lambda: self.model(run, sample), run.data, run.model, train.task, train.metrics, run.evaluate.metrics)
        if model is None:
            return
        fits = self.once(
            "patterns", lambda: self.findings.report(*pattern_problems(run, model[2])), run.model, train.task, train.freeze, *train.groups
        )
        if all(made) and fits and train.steps != 0:
            relevant = train.model_copy(update={"learning_rate": 1.0, "seed": 0, "callbacks": [], "schedule": Use(use="linear")})
            self.once("step", lambda: self.step(run, sample, model), run.data, run.model, relevant, run.evaluate.metrics)

    def callback(self, where: str, given: Use) -> None:
        """It is not made, since it may write files."""
        found = self.findings.attempt(where, given.use, lambda: load(given.use))
        if isinstance(found, type) and not issubclass(found, Callback):
            self.findings.report(f"{where}: `{given.use}` is not a callback. Derive it from snaketrain.Callback.")
        elif isinstance(found, type):
            self.findings.report(*hook_problems(where, given.use, found, Callback))

    def trainer(self, run: Settings) -> None:
        """It is not made: it would write files."""
        assert run.train.trainer
        self.findings.attempt("train.trainer.use", run.train.trainer.use, lambda: trainer_class(run.train))

    def optimizer(self, run: Settings, where: str, setting: Use) -> bool:
        """Made for one matrix, which is large enough for states in 8 bits, and stepped."""

        def make() -> bool:
            matrix = nn.Parameter(torch.ones(64, 64))
            members = [{"params": [matrix], "weight_decay": run.train.weight_decay}]
            optimizer = one_optimizer(setting, where, members, run.train.learning_rate, None, {})
            matrix.grad = torch.ones_like(matrix)
            optimizer.step()
            named_state(optimizer, {"matrix": matrix}, lambda value, _: value)
            return True

        return bool(self.findings.attempt(where, setting.use, make, "Correct it, or its arguments"))

    def sample(self, run: Settings) -> Sample | None:
        use = (run.data.train.use if run.data.train else None) or "the data"

        def take() -> Sample | None:
            try:
                return sample_of(run, self.results)
            except BadData as error:
                raise SystemExit(str(error) if SAYS_WHERE.match(str(error)) else f"data.train: {error}") from None

        def find_out() -> Sample | None:
            found = self.findings.attempt("data.train", use, take, "Correct the dataset class, or what it reads")
            self.findings.report(*(found.problems if found else ()))
            return found

        return self.once("sample", find_out, run.data, run.train.task, run.train.block_length, run.train.packing)

    def model(self, run: Settings, sample: Sample) -> Trained | None:
        arguments = {name: value for name, value in run.train.task.arguments.items() if name != OF_NAMED_LABELS or run.data.labels}
        task = self.findings.attempt("train.task", run.train.task.use, lambda: make_task(run, arguments), "Correct it, or its arguments")
        if task is None or self.findings.is_wrong("model.use"):
            return None
        where = "model.arguments" if run.model.arguments else "model.use"
        if not self.findings.is_wrong("evaluate.metrics") and (run.data.labels or ("label_names" in sample.facts and not run.data.label)):
            self.findings.attempt("train.metrics", "metrics", lambda: self.metrics(run, task, sample.facts))

        def make() -> tuple[PlannedModel, dict[str, nn.Module]]:
            source = run.model.source
            try:
                planned = planned_model(run, fetched_or_local(source, self.results, "model.source") if source else None)
            except NotPlannable:
                raise Unknown from None
            return planned, tried(lambda: built(run, task, planned, sample.facts), is_users(run))

        found = self.findings.attempt(where, run.model.use, make, "Correct the model, or its arguments")
        if found is None:
            return None
        planned, modules = found
        fits = self.findings.report(*(problem for module in modules.values() for problem in size_problems(run, module, sample.facts)))
        return (task, planned, modules) if fits else None

    def metrics(self, run: Settings, task: Task, facts: JsonObject) -> None:
        add_metrics(task, run.train.metrics, facts, run.train.task.use, "train.metrics")
        further, _ = metrics_of_settings(run.evaluate.metrics, facts, "evaluate.metrics")
        task.measured = {**task.measured, **further}  # so that `step` tries them as well

    def step(self, run: Settings, sample: Sample, model: Trained) -> None:
        task, planned, _ = model
        self.findings.attempt(
            "train.task", run.train.task.use, lambda: tried(lambda: step(run, task, planned, sample), is_users(run)),
            "A step of the training or a batch of an evaluation fails on two examples: correct the task, the model, the metrics or the data",
        )  # fmt: skip


def make_task(run: Settings, arguments: JsonObject) -> Task:
    task = load(run.train.task.use, "tasks")(**arguments)
    if not isinstance(task, Task):
        raise SystemExit(
            f"train.task.use: `{run.train.task.use}` makes a {type(task).__name__}, which is no task. Derive it from snaketrain.Task."
        )
    return task


def is_users(run: Settings) -> bool:
    """Whether code that a user wrote takes part in a step."""
    places = ("train.task", "train.optimizer", "train.groups", "train.metrics", "evaluate.metrics", "model")
    named = [each.use for each in references(run) if each.setting.startswith(places)]
    return any(":" in use for use in (*named, *uses_in(run.train.task.arguments)))


# --- the process


def main() -> None:
    request = json.load(sys.stdin)
    output = separated_output()

    def say(found: JsonObject) -> None:
        print(json.dumps(found), file=output, flush=True)

    say({"ready": True})
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    # contradictions are reported already, and must not hide what is wrong elsewhere
    runs = {name: Settings.model_validate(settings, context=CONTRADICTIONS_LATER) for name, settings in request["runs"].items()}
    check(runs, Findings(say, request["skipped"]), untried=request["untried"])
    loaded = [getattr(module, "__file__", None) for module in [*sys.modules.values()]]
    say({"done": True, "files": sorted({file for file in loaded if isinstance(file, str) and is_own(file)})})
    os._exit(0)  # what the code of users has begun, such as threads, is not waited for


def separated_output() -> TextIO:
    """The stdout of this process, which nothing else can write to from now on: what is printed goes to stderr."""
    ours = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - code that reads from it gets nothing
    os.dup2(sys.stdin.fileno(), 0)
    faulthandler.enable()
    return ours


if __name__ == "__main__":
    main()
