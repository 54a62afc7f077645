"""The sections of the configuration as classes: what may be set, what it means, and what it is by default.

`config/README.md` is generated from this file; a setting exists here once and nowhere else.
"""

import re
import shlex
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from snaketrain.credentials import has_password
from snaketrain.strategies import misfit, shares

Positive = Annotated[int, Field(gt=0)]
NotNegative = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._=+-]*$", max_length=100)]


def with_numbers(value: Any) -> Any:
    """YAML 1.1 takes `1e-8` for a text, and where anything is allowed pydantic cannot know better."""
    if isinstance(value, dict):
        return {key: with_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [with_numbers(inner) for inner in value]
    return float(value) if isinstance(value, str) and re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+", value) else value


Arguments = Annotated[dict[str, Any], BeforeValidator(with_numbers)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_not_one(cls, value: Any, info: ValidationInfo) -> Any:
        # pydantic would read `epochs: yes` as 1
        if isinstance(value, bool) and "bool" not in str(cls.model_fields[info.field_name].annotation):
            raise ValueError(f"a switch ({str(value).lower()}) makes no sense here")
        return value


class Use(Section):
    """Names a class or function, and the arguments it is called with."""

    use: str = Field(description="a short name, `package.module.Class`, or `path/to/file.py:Class`")
    arguments: Arguments = Field({}, description="keyword arguments for it")

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        return {"use": value} if isinstance(value, str) else value  # `schedule: cosine`


class Source(Section):
    """Where files come from: exactly one of `path`, `package` or `hub`."""

    path: str | None = Field(
        None, description="a file, a folder or a glob such as `raw/*.jsonl`; inside the package or the hub repository if one is named"
    )
    package: str | None = Field(None, description="an installed Python package that carries the files")
    hub: str | None = Field(None, description="a repository of the Hugging Face hub, `owner/name`")
    revision: str | None = Field(None, description="the commit of the hub repository; pinned, so that a run can be repeated")
    hub_type: Literal["model", "dataset"] = Field("model", description="which kind of hub repository")
    sha256: dict[str, str] = Field({}, description="expected digests by file name; a file that differs stops the run")

    @field_validator("sha256")
    @classmethod
    def _in_order(cls, value: dict[str, str]) -> dict[str, str]:
        return dict(sorted(value.items()))  # the order in the file means nothing

    @model_validator(mode="after")
    def _one_origin(self) -> "Source":
        if self.package and self.hub:
            raise ValueError("names a package and a hub repository: keep one")
        if not (self.path or self.package or self.hub):
            raise ValueError("names nothing: give `path`, `package` or `hub`")
        if self.hub and not self.revision:
            raise ValueError("`revision` is missing: pin the commit of the hub repository, so that the run can be repeated")
        return self


class Examples(Source):
    """Where examples come from: text files, as of a [Source](#source), or a dataset class."""

    use: str | None = Field(None, description="instead of files: a dataset class, `package.module.Class` or `path/to/file.py:Class`")
    arguments: Arguments = Field({}, description="keyword arguments for the class")

    @model_validator(mode="after")
    def _one_origin(self) -> "Examples":
        files = [name for name in ("path", "package", "hub") if getattr(self, name)]
        if self.use and files:
            raise ValueError(f"names a dataset class and a {files[0]}: keep one; what the class needs goes into its `arguments`")
        if self.arguments and not self.use:
            raise ValueError("`arguments` are for a dataset class: name it in `use`")
        if not (self.use or files):
            raise ValueError("names nothing: give `path`, `package` or `hub`, or a dataset class in `use`")
        return self if self.use else super()._one_origin()


class Data(Section):
    """Raw text or a dataset class, and how it becomes examples. Changing it prepares the data again, and all that follows."""

    name: Name = Field("data", description="names the folder of the prepared data, before a digest of this section")
    train: Examples = Field(description="the training examples")
    dev: Examples | None = Field(None, description="the development examples; none: cut from `train` by `dev_fraction`")
    test: Examples | None = Field(None, description="the test examples, with or without labels; none: cut from `train` by `test_fraction`")
    format: Literal["auto", "csv", "tsv", "jsonl", "parquet", "text"] = Field(
        "auto", description="`auto` goes by the file's ending; `text` is one example a line"
    )
    encoding: str = Field("utf-8", description="of the text files")
    columns: list[str] | None = Field(None, description="names of the columns, for CSV and TSV files without a header line")
    text: list[str] = Field(["text"], description="the column of the text; two of them for pairs of sentences", min_length=1, max_length=2)
    label: str | None = Field("label", description="the column of the label; none for language modelling")
    label_kind: Literal["class", "classes", "number"] = Field(
        "class", description="what the label is: one class, any number of classes, or a number to be predicted"
    )
    label_separator: str = Field("|", description="between the names of several classes, in text files", min_length=1)
    labels: dict[str, str] | None = Field(
        None, description="names of the classes by the label in the file, `{0: negative, 1: positive}`; none: the labels found, sorted"
    )
    where: dict[str, str] = Field({}, description="keep only rows whose columns have these values")
    dev_fraction: Fraction = Field(0.1, description="share of `train` cut off for development, where `dev` is not given")
    test_fraction: Fraction = Field(0.1, description="share of `train` cut off for the test, where `test` is not given")
    split_seed: int = Field(42, description="seed of that cut")
    limit_train: Positive | None = Field(None, description="use only so many training examples, drawn by `split_seed`")
    limit_dev: Positive | None = Field(None, description="the same for the development examples")
    limit_test: Positive | None = Field(None, description="the same for the test examples")
    tokenizer: Source | None = Field(
        None, description="a folder with `tokenizer.json`; needed for text, and by no dataset class", validate_default=True
    )
    max_length: Positive | None = Field(
        128, description="longest example in tokens; longer ones are cut, and counted; none, for language modelling: nothing is cut"
    )
    end_token: str | None = Field(
        None, description="for language modelling: a token of the tokenizer's vocabulary that is put after each text, `<|endoftext|>`"
    )

    fields: list[str] = Field(
        ["inputs", "target"], description="names of what a dataset class gives, in order, where its items are tuples", min_length=1
    )

    @property
    def by_class(self) -> bool:
        """Whether the examples come from a dataset class."""
        return self.train.use is not None

    @field_validator("tokenizer")
    @classmethod
    def _text_needs_it(cls, value: Source | None, info: ValidationInfo) -> Source | None:
        if value is None and "train" in info.data and not info.data["train"].use:
            raise ValueError("is missing, and text is nothing without it: name a folder with `tokenizer.json`")
        return value

    @field_validator("text", mode="before")
    @classmethod
    def _one_column(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("where")
    @classmethod
    def _in_order(cls, value: dict[str, str]) -> dict[str, str]:
        return dict(sorted(value.items()))

    @model_validator(mode="after")
    def _label_fits_its_kind(self) -> "Data":
        if self.label is None and self.label_kind != "class":
            raise ValueError(f"`label_kind` is {self.label_kind}, but `label` names no column: give one, or remove `label_kind`")
        if self.labels is not None and self.label_kind == "number":
            raise ValueError("`labels` names classes, but `label_kind` is number: remove one of them")
        return self

    @model_validator(mode="after")
    def _of_one_kind(self) -> "Data":
        if others := [split for split in ("dev", "test") if (given := getattr(self, split)) and (given.use is not None) != self.by_class]:
            kinds = ("a dataset class", "files") if self.by_class else ("files", "a dataset class")
            raise ValueError(f"`train` is {kinds[0]} and `{others[0]}` {kinds[1]}: give both in the same way")
        return self

    @model_validator(mode="after")
    def _fits_language_modelling(self) -> "Data":
        if self.label is None:
            return self
        if self.end_token is not None:
            raise ValueError(f"`end_token` is for language modelling, but `label` names a column ({self.label}): remove one of them")
        if self.max_length is None:
            raise ValueError("`max_length` is null, which is for language modelling, where `label` is null: give a number of tokens")
        return self

    @model_validator(mode="after")
    def _something_left_to_train_on(self) -> "Data":
        if (0 if self.dev else self.dev_fraction) + (0 if self.test else self.test_fraction) >= 1:
            raise ValueError("`dev_fraction` and `test_fraction` together leave nothing to train on")
        return self


class InitialWeights(Section):
    """Weights of an earlier run to start from, or a part of them; the optimizer and the step begin anew."""

    source: Source = Field(description="`.safetensors` files, such as the folder `selection/model` of a run")
    part: str | None = Field(None, description="take only what begins with this in the file, `encoder.`; none: all")
    into: str | None = Field(None, description="what it begins with in the model, `bert.`; none: the same")
    strict: bool = Field(True, description="refuse names and shapes without a counterpart; `false`: take what fits and log the rest")


class Model(Section):
    """The network. Changing it trains again; the data stays prepared."""

    use: str = Field(
        "transformers.AutoModelForSequenceClassification", description="the class, `package.module.Class` or `path/to/file.py:Class`"
    )
    source: Source | None = Field(None, description="pretrained weights; none: a random start from `arguments`")
    arguments: Arguments = Field({}, description="arguments of the class; for transformers, fields of its configuration")
    initial_weights: InitialWeights | None = Field(
        None, description="weights of an earlier run, copied over those of `source` or a random start"
    )


class EarlyStopping(Section):
    """When to give up: the selection metric has not become better for a while."""

    patience: Positive = Field(3, description="evaluations in a row without a better value")
    min_change: Annotated[float, Field(ge=0)] = Field(0.0, description="a smaller change than this is not better")


class Group(Section):
    """Parameters that are treated differently from the rest."""

    match: str = Field(description="a pattern of full names, `encoder.embed*`")
    rate_scale: Annotated[float, Field(gt=0)] = Field(1.0, description="their learning rate is the schedule's times this")
    weight_decay: Annotated[float, Field(ge=0)] | None = Field(None, description="instead of `train.weight_decay`")


class Train(Section):
    """How the model is trained. Changing it trains again the runs whose value changed."""

    task: Use = Field(Use(use="text_classification"), description="what is learnt: a short name of `tasks/`, or your own class")
    strategy: Use = Field(
        Use(use="auto"),
        description="how processes share the work, a short name of `strategies/`; `auto` is `single` for one process and `ddp` for several",
    )
    precision: Literal["auto", "fp32", "tf32", "fp16", "bf16"] = Field("auto", description="`auto` is fp16 on GPUs and fp32 on CPUs")
    batch_size: Positive = Field(32, description="examples of one update, over all processes together")
    batch_tokens: Positive | None = Field(
        None, description="instead of `batch_size`: as many examples of similar length as make so many tokens, padding included"
    )
    block_length: Positive | None = Field(
        None,
        description="for language models: all texts one after another, cut into examples of so many tokens; none: a text is an example",
    )
    packing: bool = Field(False, description="for language models: texts share a row, unseen by each other, instead of being padded")
    accumulate: Positive = Field(1, description="pieces in which a batch is worked off, to save memory; the result is the same")
    epochs: Annotated[float, Field(gt=0)] = Field(3.0, description="passes over the training data")
    steps: Positive | None = Field(None, description="updates, instead of `epochs`")
    optimizer: Use = Field(Use(use="torch.optim.AdamW", arguments={"eps": 1e-8}), description="an optimizer class")
    learning_rate: Annotated[float, Field(gt=0)] = Field(2e-5, description="the highest one of the schedule")
    weight_decay: Annotated[float, Field(ge=0)] = Field(0.01, description="for all parameters but biases and norms")
    groups: list[Group] = Field(
        [], description="parameters with a learning rate or weight decay of their own; the first that matches counts"
    )
    freeze: list[str] = Field([], description="patterns of parameters that are not trained, `bert.embeddings.*`")
    schedule: Use = Field(
        Use(use="linear"), description="the learning rate over time: `linear`, `constant`, `cosine`, `warmup_stable_decay`, or your own"
    )
    warmup: Annotated[float, Field(ge=0)] = Field(
        0.01, description="steps in which the learning rate rises from 0; below 1 it is a share of all steps"
    )
    clip_norm: Annotated[float, Field(gt=0)] | None = Field(1.0, description="gradients longer than this are scaled down; none: never")
    evaluations_per_epoch: Positive = Field(1, description="how often the development set is evaluated and a checkpoint saved")
    evaluate_every: Positive | None = Field(None, description="the same as a number of steps, instead of `evaluations_per_epoch`")
    bad_steps_allowed: NotNegative = Field(
        3, description="steps in a row whose loss or gradient is not a number; each is left out, and after one more the training goes back"
    )
    rollbacks_allowed: NotNegative = Field(
        2, description="how often it goes back to the last checkpoint and on behind the bad steps, before it gives up"
    )
    early_stopping: EarlyStopping | None = Field(
        None, description="stop when the selection metric has not improved for a while; none: never"
    )
    recompute_activations: bool = Field(False, description="keep only the input of each block and compute the rest again for the gradients")
    compile: bool = Field(False, description="torch.compile: slow to start, then faster on GPUs")
    deterministic: bool = Field(False, description="only operations that give the same bits each time; slower on GPUs")
    seed: NotNegative = Field(42, description="of weights, batches and dropout")

    @field_validator("warmup")
    @classmethod
    def _share_or_steps(cls, value: float) -> float:
        if value > 1 and value != int(value):
            raise ValueError(f"{value} is neither a share of the steps, below 1, nor a whole number of steps")
        return value

    @model_validator(mode="after")
    def _pieces_fit(self) -> "Train":
        if self.batch_tokens is None and self.accumulate > self.batch_size:
            raise ValueError(f"`accumulate` ({self.accumulate}) cuts a batch of {self.batch_size} into more pieces than it has examples")
        return self

    @model_validator(mode="after")
    def _one_layout(self) -> "Train":
        if self.packing and self.block_length is not None:
            raise ValueError("`packing` keeps texts whole, and `block_length` cuts them: keep one of the two")
        return self


class Select(Section):
    """Which checkpoint wins. Changing it trains nothing."""

    metric: str = Field("accuracy", description="a metric that the task logs on the development set")
    mode: Literal["max", "min"] = Field("max", description="whether more or less of it is better")


class Evaluate(Section):
    """How the winner is evaluated. Changing it evaluates and compares only."""

    batch_size: Positive = Field(64, description="examples at a time, over all processes together; the results do not depend on it")
    confidence: Annotated[float, Field(gt=0.5, lt=1.0)] = Field(0.95, description="of the interval around the accuracy")
    bins: Positive = Field(10, description="of the reliability plot")


SBATCH_SETTINGS = {
    **dict.fromkeys(("--nodes", "-N"), "compute.nodes"),
    **dict.fromkeys(("--ntasks", "-n", "--ntasks-per-node", "--ntasks-per-gpu"), "compute.processes"),
    **dict.fromkeys(("--cpus-per-task", "-c", "--cpus-per-gpu"), "compute.threads"),
    **dict.fromkeys(("--gres", "--gpus", "-G"), "compute.gpus"),
    **dict.fromkeys(("--mem", "--mem-per-cpu"), "compute.memory_mb"),
    **dict.fromkeys(("--time", "-t"), "compute.minutes"),
    **dict.fromkeys(("--partition", "-p"), "compute.partition"),
    **dict.fromkeys(("--signal",), "compute.save_before_limit_seconds"),
    **dict.fromkeys(("--output", "-o", "--error", "-e"), "slurm-logdir of the profile"),
    **dict.fromkeys(("--clusters", "-M"), "slurm_cluster of the profile"),
    **dict.fromkeys(("--requeue", "--no-requeue"), "slurm-requeue of the profile"),
}


class Compute(Section):
    """Where and on how much it runs. Changing it makes nothing stale."""

    nodes: Annotated[str, Field(pattern=r"^[1-9][0-9]*(-[1-9][0-9]*)?$")] = Field(
        "1", description="machines of a training under SLURM; `1-4` goes on with fewer when the cluster has no more"
    )
    processes: Positive = Field(1, description="training processes on each node; several are started by torchrun's agent")
    threads: Positive = Field(2, description="CPU cores of a training on each node, shared by its processes, and of a preparation")
    gpus: NotNegative = Field(0, description="GPUs on each node, to be asked of SLURM; one for each process")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="`auto` takes a GPU where there is one")
    launcher: Literal["auto", "torchrun", "srun", "env"] = Field(
        "auto",
        description="`srun` starts torchrun on each node of a SLURM job, and `auto` does so inside of one; with `env`, `launch_command` starts the "
        "processes, which find their ranks in the environment, as under mpiexec or aprun",
    )
    launch_command: str = Field("mpiexec -n {processes}", description="for the launcher `env`: what stands in front of python")
    memory_mb: Positive = Field(4000, description="memory of a training on each node, to be asked of SLURM")
    minutes: Positive = Field(120, description="time limit of a SLURM job; a longer training saves, is queued again and goes on")
    save_before_limit_seconds: NotNegative = Field(120, description="how long before the time limit a training saves and is queued again")
    partition: str | None = Field(None, description="of SLURM, for training and evaluation; none: the one in the profile")
    sbatch: str = Field("", description="further options of sbatch, `--constraint=a100 --exclusive`")
    stall_seconds: Annotated[float, Field(gt=0)] = Field(
        1800, description="a training in which nothing moves for so long says which process is where, and ends"
    )
    restarts: NotNegative = Field(
        3,
        description="how often in a row, without a new checkpoint, a training of several processes is started again on the spot when one was lost",
    )
    reduce_batch_on_oom: bool = Field(
        False, description="work off each batch in more pieces when the memory runs out; the result is the same"
    )
    keep_checkpoints: Positive = Field(2, description="how many of the best checkpoints are kept, besides the last")

    @field_validator("nodes")
    @classmethod
    def _in_order(cls, value: str) -> str:
        first, _, last = value.partition("-")
        if last and int(last) < int(first):
            raise ValueError(f"{value} goes down: write the smaller number first")
        return value

    @field_validator("sbatch")
    @classmethod
    def _no_other_setting(cls, value: str) -> str:
        try:
            words = shlex.split(value)
        except ValueError as error:
            raise ValueError(f"is not what a shell takes: {error}") from None
        for word in words:
            if setting := SBATCH_SETTINGS.get(word.partition("=")[0]):
                raise ValueError(f"`{word.partition('=')[0]}` is asked for by {setting}: use that instead")
        return value

    @property
    def node_counts(self) -> range:
        first, _, last = self.nodes.partition("-")
        return range(int(first), int(last or first) + 1)


class Tracking(Section):
    """What MLflow and the progress bar show, and where. Changing it makes nothing stale."""

    uri: str | None = Field(None, description="an MLflow server or database; none: `mlflow.db` beside the results")
    experiment: str = Field("snaketrain", description="the MLflow experiment", min_length=1)
    notes: str = Field("", description="free text, shown with the run in MLflow")
    register_models: bool = Field(
        True, description="whether the best text classifier of an experiment goes to MLflow's registry, to be served"
    )
    log_every_steps: Positive = Field(10, description="how often training metrics are written down")

    @field_validator("uri")
    @classmethod
    def _holds_no_password(cls, uri: str | None) -> str | None:
        if uri and has_password(uri):
            raise ValueError(
                "holds a password, which would be seen in logs and process lists: take user and password out of the address, and before the "
                "start set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            )
        return uri


class Settings(Section):
    """All that one run is made of."""

    data: Data
    model: Model = Model()
    train: Train = Train()
    select: Select = Select()
    evaluate: Evaluate = Evaluate()
    compute: Compute = Compute()
    tracking: Tracking = Tracking()

    @model_validator(mode="after")
    def _all_splits_are_there(self) -> "Settings":
        for split in ("dev", "test"):
            if getattr(self.data, split) is None and getattr(self.data, f"{split}_fraction") == 0:
                raise ValueError(
                    f"data.{split} is not given and data.{split}_fraction is 0: give one of them, since a checkpoint is chosen and judged by both"
                )
        return self

    @model_validator(mode="after")
    def _layout_fits(self) -> "Settings":
        """Texts that are cut, or share a row, can no longer be told apart by those who want an answer for each."""
        name = "packing" if self.train.packing else None if self.train.block_length is None else "block_length"
        if name and (self.data.by_class or self.data.label is not None):
            kind = "a dataset class" if self.data.by_class else f"labels (data.label: {self.data.label})"
            raise ValueError(f"train.{name} is for language models, but the data has {kind}: set data.label: null, or remove train.{name}")
        if name == "block_length" and len(self.data.text) == 2:
            raise ValueError(
                "train.block_length would part answers from their prompts (data.text names two columns): use train.packing, or one column"
            )
        return self

    @model_validator(mode="after")
    def _processes_fit(self) -> "Settings":
        strategy, compute = self.train.strategy, self.compute
        for nodes in compute.node_counts:
            processes = nodes * compute.processes
            if problem := misfit(strategy.use, strategy.arguments, processes, compute.device):
                raise ValueError(problem + (f" (with {nodes} nodes)" if compute.nodes != "1" else ""))
        parts = shares(strategy.use, strategy.arguments, processes) * self.train.accumulate
        if self.train.batch_tokens is None and parts > self.train.batch_size:
            nodes = f"compute.nodes ({compute.nodes}) times " if compute.nodes != "1" else ""
            raise ValueError(
                f"{nodes}compute.processes ({compute.processes}) times train.accumulate ({self.train.accumulate}) is more than a batch has "
                f"examples (train.batch_size: {self.train.batch_size}): use fewer processes or a larger batch"
            )
        if compute.launcher in ("env", "torchrun") and compute.nodes != "1":
            where = "this machine" if compute.launcher == "torchrun" else "wherever compute.launch_command says"
            raise ValueError(f"compute.launcher `{compute.launcher}` starts processes on {where}: set compute.nodes: 1, or launcher: auto")
        return self
