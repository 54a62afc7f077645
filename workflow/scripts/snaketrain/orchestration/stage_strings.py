"""What makes the result of each stage stale: `key=json` for each setting, and digests of code and of local files."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from snaketrain.config.runs import strings
from snaketrain.config.schema import Inputs, Settings
from snaketrain.labels import label_kind_file
from snaketrain.orchestration.code_digest import SCRIPTS, code_strings
from snaketrain.orchestration.evaluation_sets import run_of, set_of
from snaketrain.orchestration.inspection.strategy_declarations import strategy_files
from snaketrain.orchestration.inspection.task_metrics import train_settings
from snaketrain.orchestration.own_files import class_files, content, dataset_classes, of_splits, uses_in
from snaketrain.orchestration.rule_values import varying
from snaketrain.orchestration.shards import SHARD_STAGES, dataset_of
from snaketrain.tasks.metric_names import is_short

if TYPE_CHECKING:
    from snaketrain.orchestration.pipeline import Pipeline


class StageStrings:
    def __init__(self, pipeline: "Pipeline"):
        self.pipeline = pipeline
        self._known: dict[tuple[str, str], list[str]] = {}
        self._digests: dict[tuple[str | Path, ...], list[str]] = {}

    def local_files(self, stage: str, name: str) -> list[str]:
        """A digest for each source of local files; files of a package or a pinned commit do not change.

        Snakemake compares large files by modification time alone: it changes when a file is copied, and does not when an older file takes its place.
        """
        if not self.pipeline.reads_files or not stage.startswith("fetch"):
            return []
        sources = of_splits(self.pipeline.datasets[name]) if stage == "fetch_data" else {"source": self.pipeline.source(stage, name)}
        return [f"files.{setting}={content(source)}" for setting, source in sources.items() if source.is_local]

    def of(self, stage: str, name: str) -> list[str]:
        """`key=json` for each setting and each piece of code that a stage's result depends on."""
        if (stage, name) not in self._known:
            self._known[stage, name] = self._settings(stage, name) + self._code(stage, name)
        return self._known[stage, name]

    def _settings(self, stage: str, name: str) -> list[str]:
        if stage == "compare_runs":
            return []
        if stage == "train_trunk":
            return self.pipeline.trunks.settings(name)
        if stage in ("fetch_model", "fetch_input"):
            return strings("source", self.pipeline.source(stage, name))
        if stage == "fetch_data":
            return [s for split, source in of_splits(self.pipeline.datasets[name]).items() for s in strings(f"data.{split}", source)]
        if stage in ("prepare_data", "decide_classes", *SHARD_STAGES):
            return strings("data", self.pipeline.datasets[dataset_of(name)])
        if stage == "prepare_set":
            return strings("data", self.pipeline.sets.prepared[name].reading)
        if stage == "decide_rung":
            return self.pipeline.searches.decision_settings(name)
        run = self.pipeline.runs[run_of(name)]
        if stage == "train_rung":
            return [*self._settings("train_model", run_of(name)), *self.pipeline.searches.rung_settings(name)]
        if stage == "evaluate_set":
            return self.pipeline.sets.settings(name)
        if stage == "predict_inputs":
            return [s for each, inputs in sorted(predicted(run).items()) for s in strings(f"predict.{each}", inputs)]
        sections = {"train_model": ("model", "train"), "select_checkpoint": ("select",), "evaluate_model": ("evaluate",)}[stage]
        if stage == "train_model" and run.train.depends_on_selection:
            sections += ("select",)
        return [s for section in sections for s in strings(section, train_settings(run) if section == "train" else getattr(run, section))]

    def _code(self, stage: str, name: str) -> list[str]:
        own: list[Path] = []
        if stage == "train_trunk":
            return self._code("train_model", self.pipeline.trunks.known[name].run)
        if stage in ("prepare_data", "decide_classes", *SHARD_STAGES):
            data = self.pipeline.datasets[dataset_of(name)]
            own = [*class_files(dataset_classes(data)), label_kind_file(data.label_kind)]
        if stage == "prepare_set":
            reading = self.pipeline.sets.prepared[name].reading
            own = [*class_files(dataset_classes(reading)), label_kind_file(reading.label_kind)]
        if stage in ("train_model", "train_rung", "evaluate_model", "evaluate_set", "predict_inputs"):
            run = self.pipeline.runs[run_of(name)]
            named = [(run.train.task.use, "tasks"), (run.model.use, None), *dataset_classes(run.data.for_training)]
            if stage.startswith("evaluate"):
                named += dataset_classes(run.sets.get(set_of(name), run.data))
            named += [(use, None) for use in uses_in(run.train.task.arguments)]  # losses, metrics
            named += [(metric.use, None) for metric in run.train.metrics.values() if not is_short(metric.use)]
            if stage.startswith("evaluate"):
                named += [(metric.use, None) for metric in run.evaluate.metrics.values() if not is_short(metric.use)]
            if stage.startswith("train"):
                named += [(run.train.optimizer.use, None), (run.train.schedule.use, "training.schedules")]
                named += [(group.optimizer.use, None) for group in run.train.groups if group.optimizer]
                named += [(group.schedule.use, "training.schedules") for group in run.train.groups if group.schedule]
                named += [(callback.use, None) for callback in run.train.callbacks]
            own = [*class_files(named), *strategy_files(run.train.strategy.use), label_kind_file(run.data.label_kind)]
        key: tuple[str | Path, ...] = (stage, *own)  # the points of a sweep run the same code
        if key not in self._digests:
            self._digests[key] = code_strings(SCRIPTS / f"{stage}.py", *own)
        return self._digests[key]

    def params(self, stage: str, names: Iterable[str]) -> list[str | Callable[[Sequence[str]], str]]:
        """The strings as params of a rule: a value where all its jobs share it, a function of the wildcards where they differ.

        Snakemake compares params as a set of values. With one value per setting, which includes the setting's name, it notices
        every change and shows the old and the new value.
        """
        strings = {name: self.of(stage, name) + self.local_files(stage, name) for name in names}
        everywhere = set.intersection(*map(set, strings.values())) if strings else set()
        shared = {string for string in everywhere if "{" not in string}  # Snakemake would look for wildcards in braces
        # a job with fewer strings than others repeats one of its own, which changes nothing in a set
        differing = {name: [string for string in found if string not in shared] or found[:1] for name, found in strings.items()}

        def item(number: int) -> str | Callable[[Sequence[str]], str]:
            def string(name: str) -> str:
                own = differing[name]
                return own[min(number, len(own) - 1)]

            return varying(differing, string)

        return [*sorted(shared), *map(item, range(max(map(len, differing.values()), default=0)))]


def predicted(run: Settings) -> dict[str, Inputs]:
    """The inputs of `predict`, of which those that do not say how text is generated follow the evaluation."""
    by_evaluation = {"generate": run.evaluate.generate}
    return {
        name: inputs.model_copy(update=by_evaluation) if inputs.generate is None and inputs.asks_for_text(run.data) else inputs
        for name, inputs in run.predict.items()
    }
