"""Every error in a configuration is reported before any job starts: where, what, and what to do."""

import copy
import resource
import subprocess
import sys
from pathlib import Path

import limits
import pytest

from snaketrain.config.errors import ConfigurationError
from snaketrain.data.fetching import model_config
from snaketrain.orchestration.preflight import examine

ROOT = Path(__file__).parents[2]
DATASET = {"train": {"path": "train.csv"}, "tokenizer": {"path": "tokenizer"}}
BASE = {"data": DATASET, "model": {"use": "transformers.BertForSequenceClassification"}}
SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
NAME = ("cannot be a name", "use only letters, digits and . _ - = +")

SUMMARY = {"data/label": None, "data/target": "summary", "train/task": {"use": "seq2seq", "arguments": {}}}

HEIRS = """
import mine
from snaketrain.tasks import base
from snaketrain.tasks.text_classification import TextClassification as Sentences


class Heir(mine.Mine):
    pass


class Own(Sentences):
    metrics: dict[str, str]


class Mixed(Heir, mine.Mine, base.Task):
    pass
"""

# the change ("/" separates sections), and parts of the message, which begins with the path
PROMPTS = {"data/text": ["text", "label"], "data/label": None, "train/task": "causal_lm", "select/metric": "loss"}
BAD = [
    # misspelt keys, at every level
    ({"trian": {}}, "trian: no such section. Did you mean 'train'?"),
    ({"train/learning_rat": 1}, "train.learning_rat: no such setting. Did you mean 'learning_rate'?"),
    ({"data/train/pth": "x"}, "data.train.pth: no such setting. Did you mean 'path'?"),
    ({"train/optimizer": {"use": "torch.optim.SGD", "argments": {}}}, "train.optimizer.argments: no such setting. Did you mean 'arguments'?"),
    ({"runs": {"a": {"train.learning_rat": 1}}}, "runs.a.train.learning_rat: no such setting. Did you mean 'learning_rate'?"),
    ({"runs": {"a": {"train": {"learning_rat": 1}}}}, "runs.a.train.learning_rat: no such setting. Did you mean 'learning_rate'?"),
    ({"runs": {"a": {"trian.seed": 1}}}, "runs.a.trian.seed: no such setting. Did you mean 'train'?"),
    ({"runs": {"a": {"data.train.pth": "x"}}}, "runs.a.data.train.pth: no such setting. Did you mean 'path'?"),
    ({"sweeps": {"s": {"train.sed": [1, 2]}}}, "sweeps.s.train.sed: no such setting. Did you mean 'seed'?"),
    ({"sweeps": {"s": {"trian.seed": [1, 2]}}}, "sweeps.s.trian.seed: no such setting. Did you mean 'train'?"),
    ({"datasets": {"imdb": {"tran": 1}}}, "datasets.imdb.tran: no such setting. Did you mean 'train'?"),
    ({"train": {"epochs": 2}, "train.seed": 3}, "train.seed: names with dots are for runs and sweeps. In the file itself, write it below its section: train: {seed: ...}."),
    ({"model.arguments.hidden_size": 8}, "model.arguments.hidden_size: names with dots are for", "model: {arguments: {hidden_size: ...}}"),
    # wrong types and sizes
    ({"compute/nodes": "1-4"}, "compute: `nodes` is 1-4, but with 2 `threads` SLURM allocates at most 2 nodes"),
    ({"train/seed": "some"}, "train.seed: expects a valid integer", 'not "some"'),
    ({"train/batch_size": 0}, "train.batch_size: expects a number greater than 0, not 0."),
    ({"train/batch_size": -3}, "train.batch_size: expects a number greater than 0, not -3."),
    ({"train/batch_size": 2.5}, "train.batch_size: expects a valid integer", "not 2.5"),
    ({"train/batch_size": True}, "train.batch_size: true is not what this setting takes: correct it"),
    ({"train/epochs": False}, "train.epochs: false is not what this setting takes: correct it"),
    ({"train/learning_rate": float("nan")}, "train.learning_rate: expects a finite number, not NaN"),
    ({"train/warmup": 1.5}, "train.warmup: 1.5 is neither a share of the steps (below 1) nor a whole number"),
    ({"data/max_length": 0}, "data.max_length: expects a number greater than 0, not 0"),
    ({"compute/loader_workers": "some"}, "compute.loader_workers: expects a valid integer", 'not "some"'),
    ({"data/text": []}, "data.text: expects a list of at least 1 item"),
    ({"data/labels": ["bad", "good"]}, "data.labels: expects names with their values below it"),
    ({"data/name": "../x"}, "data.name: '../x'", *NAME),
    ({"evaluate/confidence": 95}, "evaluate.confidence: expects a number less than 1, not 95"),
    ({"compute/processes": 0}, "compute.processes: expects a number greater than 0"),
    ({"train/optimizer": ["torch.optim.AdamW"]}, "train.optimizer: expects its settings (use, arguments) below it"),
    ({"train": [1]}, "train: expects its settings (task, strategy", "not [1]"),
    ({"select": "accuracy"}, "select: expects its settings (metric, mode, average, step) below it", 'not "accuracy"'),
    ({"data": None}, "data: is missing", "See config/README.md"),
    ({"data/tokenizer": None}, "data: `tokenizer` is missing, and text needs one: name a folder"),
    ({"data/train": "train.csv"}, "data.train: expects its settings (path, package", 'not "train.csv"'),
    # names of runs and sweeps
    *(({"runs": {name: {}}}, f"runs.{name}: {name!r}".replace("\n", "\\n"), *NAME) for name in ("../x", "a b", "$(touch x)", "a;b", "", "..", "a/b", "a\n", "-a")),
    ({"runs": ["a", "b"]}, "runs: expects names with their settings below them", 'not ["a", "b"]'),
    ({"runs": {"a": 5}}, "runs.a: expects settings such as `train.seed: 1`, not 5"),
    ({"runs": {"Wide": {}, "wide": {}}}, "runs.wide: there is already a run named 'wide'", "upper and lower case"),
    ({"runs": {"s-seed=1": {}}, "sweeps": {"s": {"train.seed": [1, 2]}}}, "sweeps.s: there is already a run named 's-seed=1'"),
    ({"sweeps": {"a/b": {"train.seed": [1]}}}, "sweeps.a/b: 'a/b'", *NAME),
    ({"sweeps": {"s": {"train.seed": 3}}}, "sweeps.s.train.seed: expects a list of values, not 3"),
    ({"sweeps": {"s": {"train.seed": []}}}, "sweeps.s.train.seed: expects a list of values, not []"),
    ({"sweeps": {"s": {"train.seed": [1, -1]}}}, "sweeps.s.train.seed: expects a number greater than or equal to 0, not -1"),
    # what is given twice, or means nothing
    ({"runs": {"a": {"train": {"seed": 1}, "train.seed": 2}}}, "runs.a: `train.seed` is given twice, by `train` and by `train.seed`"),
    ({"runs": {"a": {"train.optimizer": "a.B", "train.optimizer.use": "a.C"}}}, "runs.a: `train.optimizer.use` is given twice"),
    ({"data/label": None, "train/task": "causal_lm", "train/block_length": 1, "select/metric": "loss"}, "train: `block_length` is 1"),
    ({"model/source": {"path": "x"}, "model/adapters": {"target_modules": "("}}, "model.adapters.target_modules: '(' is no regular expression"),
    *(({"tracking/uri": uri}, f"tracking.uri: '{uri}' names no file") for uri in ("sqlite://", "sqlite:///", "sqlite+pysqlite://")),
    # choices and names of code
    ({"select/metric": "accurcy"}, "select.metric: the task logs no 'accurcy'. Did you mean 'accuracy'?", "It logs: loss, accuracy, macro_f1"),
    ({"train/task": {"use": "mine.py:Mine"}}, "select.metric: the task logs no 'accuracy'", "It logs: loss, blue"),
    ({"data/label_kind": "number"}, "select.metric: the task logs no 'accuracy' where data.label_kind is number", "It logs: loss, mae, pearson, r2."),
    ({"data/label_kind": "classes"}, "select.metric: the task logs no 'accuracy' where data.label_kind is classes", "micro_f1, macro_f1, exact_match."),
    ({"data/label_kind": "clases"}, 'data.label_kind: "clases" is not one of', "Did you mean 'classes'?"),
    ({"data/label_kind": "number", "data/labels": {0: "bad"}}, "data: `labels` names classes, but `label_kind` is number: remove one"),
    ({"data/label_kind": "classes", "data/label": None}, "data: `label_kind` is classes, but `label` is null: name a column"),
    ({"train/task": {"use": "heir.py:Heir"}}, "select.metric: the task logs no 'accuracy'", "It logs: loss, blue"),
    ({"train/task": {"use": "heir.py:Own"}, "select/metric": "macro-f1"}, "select.metric: the task logs no 'macro-f1'. Did you mean 'macro_f1'?"),
    ({"train/task": {"use": "heir.py:Mixed"}}, "select.metric: the task logs no 'accuracy'", "It logs: loss, blue"),
    ({"select/mode": "min"}, "select.mode: is min, but for 'accuracy' higher is better. Remove it: the metric decides."),
    ({"select": {"metric": "loss", "mode": "max"}}, "select.mode: is max, but for 'loss' lower is better. Remove it"),
    ({"data/label_kind": "number", "select": {"metric": "mae", "mode": "max"}}, "select.mode: is max, but for 'mae' lower is better. Remove it"),
    ({"data/label": None, "train/task": "causal_lm", "select": {"metric": "perplexity", "mode": "max"}}, "select.mode: is max, but for 'perplexity' lower is better"),
    ({"train/task": {"use": "heir.py:Heir"}, "select/metric": "blue"}, "select.mode: is missing, and 'blue' does not declare whether higher or lower is better. Set it to max or min."),
    ({"train/task": {"use": "old.py:Names"}, "select/metric": "blue"}, "train.task.use: the `metrics` of Names must declare whether higher or lower is better, such as metrics = {'loss': 'min'"),
    ({"train/task": {"use": "old.py:Words"}, "select/metric": "blue"}, "train.task.use: the `metrics` of Words must declare"),
    ({"select/mode": "maximum"}, "select.mode: \"maximum\" is not one of 'max' or 'min'. Did you mean 'max'?"),
    ({"train/strategy": "dpd"}, "train.strategy.use: `dpd` is not one of", "Did you mean `ddp`?"),
    ({"train/strategy": {"use": "hsdp", "arguments": {"shard": 3}}, "compute/processes": 4}, "train.strategy.arguments.shard is 3", "compute.processes (4)"),
    ({"train/strategy": {"use": "tensor_parallel", "arguments": {"tensor": 3}}, "compute/processes": 4}, "train.strategy.arguments.tensor is 3", "compute.processes (4)"),
    ({"train/strategy": {"use": "tensor_parallel", "arguments": {"tensor": 4, "shard": True}}, "compute/processes": 4}, "train.strategy.arguments.shard is set", "takes all of compute.processes (4)", "a smaller `tensor`"),
    ({"train/strategy": {"use": "mesh", "arguments": {"context": 3}}, "compute/processes": 4}, "train.strategy.arguments.context (3) does not divide compute.processes (4)"),
    ({"train/strategy": {"use": "mesh", "arguments": {"replicate": -1, "shard": -1}}, "compute/processes": 4}, "train.strategy.arguments.replicate and train.strategy.arguments.shard are -1, but only one can"),
    ({"train/strategy": {"use": "mesh", "arguments": {"shard": 2}}, "compute/processes": 4}, "train.strategy.arguments.shard (2) leaves processes over, since compute.processes is 4: set train.strategy.arguments.shard to -1"),
    ({"train/strategy": {"use": "mesh", "arguments": {"tensor": 0}}}, "train.strategy.arguments.tensor is 0: give a number of processes, or -1"),
    ({"train/strategy": {"use": "mesh", "arguments": {"sequence_parallel": True}}}, "train.strategy.arguments.sequence_parallel: has no effect without train.strategy.arguments.tensor: set it"),
    ({"train/strategy": {"use": "mesh", "arguments": {"context_attention": "ring", "context": -1}}}, "train.strategy.arguments.context_attention: is 'ring', which is not one of gather, ulysses"),
    ({"train/strategy": "fairscale_fsdp", "compute/device": "cpu"}, "train.strategy `fairscale_fsdp` needs GPUs, but compute.device is cpu: use `fsdp`"),
    ({"train/strategy": {"use": "auto", "arguments": {"static_graph": True}}}, "train.strategy `auto` takes no arguments", "name the strategy"),
    ({"train/strategy": {"use": "mesh", "arguments": {"context": 2}}, "compute/processes": 2, "runs": {"a": {}, "b": {"train.compile": True}}}, "train.compile: torch 2.13 cannot compile", "(run b)"),
    ({"compute/setup": "if [ -d /data ]; then module load cuda"}, "compute.setup: bash cannot read it (", "Correct its quotes, brackets and keywords"),
    ({"tracking/on_end": "mail -s 'it\'s done'"}, "tracking.on_end: sh cannot read it ("),
    ({"train/metrics": {"low": {"use": "f1"}}}, "train.metrics: a metric cannot be named 'low', as another column of the comparison is: give it another name"),
    ({"evaluate/metrics": {"baseline": {"use": "f1"}}}, "evaluate.metrics: a metric cannot be named 'baseline'"),
    ({"train/early_stopping": {"patience": 0}}, "train.early_stopping.patience", "a number greater than 0"),
    ({"train/task": {"use": "text_clasification"}}, "train.task.use: `text_clasification` is not one of", "Did you mean `text_classification`?"),
    ({"train/task": {"use": "nowhere.py:Mine"}}, "train.task.use: `nowhere.py:Mine`: there is no file nowhere.py", "Correct the path"),
    ({"train/task": {"use": "broken.py:Mine"}}, "train.task.use: `broken.py:Mine`: broken.py, line 2:", "Correct the file"),
    ({"train/task": {"use": "beside.py:Mine"}}, "train.task.use: `beside.py:Mine` imports", "broken.py, line 2", "Correct the file"),
    ({"train/task": {"use": "mine.py:Mime"}}, "train.task.use: `mine.py:Mime`: mine.py has no `Mime`. Did you mean `Mine`?"),
    ({"train/task": {"use": "mine.py"}}, "train.task.use: `mine.py` is not complete: write `path/to/file.py:Name`"),
    ({"train/optimizer": {"use": "torch.optm.AdamW"}}, "train.optimizer.use: `torch.optm.AdamW`: there is no module `torch.optm`. Did you mean `optim`?"),
    ({"train/optimizer": {"use": "AdamW"}}, "train.optimizer.use: `AdamW` is not complete: write `package.module.Class`"),
    ({"train/schedule": {"use": "lineer"}}, "train.schedule.use: `lineer` is not one of constant, cosine, inverse_square_root, linear, warmup_stable_decay. Did you mean `linear`?"),
    ({"model/use": "transfomers.BertModel"}, "model.use: `transfomers.BertModel`: no package `transfomers` is installed. Install it"),
    ({"model/use": "transformers.AutoModelForSequenceClassification"}, "model.source: is missing", "Name pretrained weights"),
    # what does not go together
    ({"train/accumulate": 64}, "train: `accumulate` (64) splits a batch of 32 into more microbatches than it has examples"),
    ({"compute/processes": 40}, "compute.processes (40) times train.accumulate (1) is more than a batch has", "use fewer processes"),
    ({"compute/processes": 8, "train/accumulate": 8}, "compute.processes (8) times train.accumulate (8)", "or a larger batch"),
    ({"compute/processes": 2, "train/strategy": "single"}, "train.strategy `single` runs in one process", "use `ddp` or `auto`"),
    ({"data/dev_fraction": 0.6, "data/test_fraction": 0.5}, "data: `dev_fraction` and `test_fraction` together leave nothing to train on"),
    ({"data/max_length": None}, "data: `max_length` is null, which is for language modelling", "give a number of tokens"),
    ({"data/target": "summary"}, "data: `target` is for sequence to sequence, but `label` names a column (label)", "set `label: null`"),
    ({"data/label": None, "data/target": "text"}, "data: `text` and `target` name the same column (text)", "name two columns"),
    ({"data/label": None, "data/target": "summary", "data/text": ["a", "b"]}, "data: `target` is generated from one text", "name one"),
    ({"data/max_target_length": 9}, "data: `max_target_length` has no effect without `target`", "name the column"),
    ({"data/label": None, "data/target": "summary"}, "data.target (summary) is not read by train.task text_classification", "use seq2seq"),
    ({"train/task": "seq2seq"}, "data.target is missing, and train.task seq2seq needs it", "name the column of the text to generate"),
    (
        {"data/label": None, "data/target": "summary", "train/task": "seq2seq", "train/packing": True},
        "data.target is for sequence to sequence, but train.packing",
        "remove one of them",
    ),
    ({"data/messages": "chat"}, "data: `messages` is for language models, but `label` names a column (label)", "set `label: null`"),
    ({"data/messages": "chat", "data/label": None, "data/text": "x"}, "data: `messages` (chat) and `text` (x) both name the training text"),
    ({"data/messages": "chat", "data/label": None}, "data.messages (chat) is not read by train.task text_classification", "use causal_lm"),
    ({"data/messages": "chat", "data/label": None, "train/task": "causal_lm"}, "data.messages: path 'tokenizer' has no chat template"),
    ({"evaluate/generate": {}}, "evaluate.generate: train.task text_classification generates nothing", "Use one of causal_lm, seq2seq"),
    ({**SUMMARY, "select/metric": "bleu"}, "select.metric: bleu is that of generated answers", "Set train.task.arguments.generate"),
    ({**SUMMARY, "train/task/arguments": {"generate": {"beams": 2}}}, "train.task.arguments.generate.beams: no such setting"),
    (
        {**SUMMARY, "train/task/arguments": {"generate": {"num_beams": 0}}},
        "train.task.arguments.generate.num_beams: expects a number greater than 0",
    ),
    (
        {**SUMMARY, "evaluate/generate": {}, "train/strategy": "fairscale_fsdp", "compute/device": "cuda"},
        "evaluate.generate: train.strategy fairscale_fsdp cannot generate",
        "Use fsdp",
    ),
    (
        {**SUMMARY, "evaluate/generate": {}, "train/strategy": {"use": "mesh", "arguments": {"tensor": -1, "sequence_parallel": True}}},
        "evaluate.generate: train.strategy mesh with sequence_parallel cannot generate",
    ),
    (
        {"data/label": None, "train/task": "causal_lm", "evaluate/generate": {}},
        "evaluate.generate: the data marks no answers to be generated",
        "Name the columns of prompt and answer in data.text",
    ),
    ({"data/end_token": "[SEP]"}, "data: `end_token` is for language modelling, but `label` names a column (label): remove one"),
    ({"train/packing": True, "train/block_length": 4}, "train: `packing` keeps texts whole, and `block_length` cuts them: keep one"),
    ({"train/block_length": 4}, "train.block_length is for language models, but the data has labels (data.label: label)", "set data.label: null"),
    ({"train/packing": True, "data/train": {"use": "mine.py:Mine"}}, "train.packing is for language models, but the data has a dataset class"),
    ({"train/block_length": 4, "data/label": None, "data/text": ["a", "b"]}, "train.block_length would separate answers", "use train.packing"),
    ({"data/train": None, "data/test": {"path": "train.csv"}}, "data: `labels` is missing: without `train` it must list the classes of the model"),
    ({"data/train": None, "data/test": {"path": "train.csv"}, "data/labels": {0: "a", 1: "b"}}, "train.steps is not 0, but there is no data.train: name the training data"),
    ({"data/train": None, "train/steps": 0}, "data names no examples: give data.train, or data.test alone"),
    ({"data/dev_fraction": 0}, "data.dev is not given and data.dev_fraction is 0: give one of them, since a checkpoint is selected on it"),
    # sources and what is in them
    ({"data/train": {}}, "data.train: names nothing: give `path`, `package` or `hub`"),
    ({"data/train": {"hub": "a/b"}}, "data.train: `revision` is missing: pin the commit"),
    ({"data/train": {"hub": "a/b", "package": "c", "revision": "d"}}, "data.train: names a package and a hub repository: keep one"),
    ({"data/train": {"use": "mine.py:Mine", "path": "train.csv"}}, "data.train: names a dataset class and a path: keep one"),
    ({"data/train/arguments": {"size": 3}}, "data.train: `arguments` are for a dataset class: name it in `use`"),
    ({"data/dev": {"use": "mine.py:Mine"}}, "data: `train` is files, but `dev` is a dataset class: use the same kind for both"),
    ({"data/train": {"use": "mine.py:Mime"}}, "data.train.use: `mine.py:Mime`: mine.py has no `Mime`. Did you mean `Mine`?"),
    ({"model/source": {"use": "mine.py:Mine"}}, "model.source.use: no such setting"),
    ({"train/task": {"use": "mine.py:Mine", "arguments": {"a": [{"use": "mine.py:Mime"}]}}}, "train.task.arguments: `mine.py:Mime`: mine.py has no"),
    ({"data/train": {"path": "trian.csv"}}, "data.train: path 'trian.csv': no file there", "Did you mean 'train.csv'?"),
    ({"data/train": {"path": "*.tsv"}}, "data.train: path '*.tsv': no file there", "Correct the path"),
    ({"data/train": {"package": "no_such_package"}}, "data.train: package 'no_such_package': not installed. Install it"),
    ({"model/source": {"path": "weights"}}, "model.source: path 'weights': no file there", "Correct the path"),
    ({"data/train": {"path": "train.csv", "sha256": {"trian.csv": "0" * 64}}}, "data.train: sha256 names 'trian.csv'", "Did you mean 'train.csv'?"),
    ({"data/tokenizer": {"path": "tokenizer", "sha256": {"tokeniser.json": "0" * 64}}}, "data.tokenizer: sha256", "Did you mean 'tokenizer.json'?"),
    ({"model/initial_weights": {"source": {"path": "train.csv"}}}, "model.initial_weights.source: path 'train.csv' contains no `.safetensors` or `.pt` file"),
    ({"model/initial_weights": {"source": {"path": "run"}}}, "model.initial_weights.source: path 'run': no file there", "Correct the path"),
    ({"data/tokenizer": {"path": "train.csv"}}, "data.tokenizer: path 'train.csv' contains no `tokenizer.json`. Name the folder that does"),
    ({"data/train": {"path": "empty.csv"}}, "data.train: no rows in", "Is it the right file"),
    ({"data/train": {"path": "one_class.csv"}}, "data.label: all 30 training examples are of one class, '1': there is nothing to learn. Check `label`"),
    ({"data/text": "txt"}, "data.text: train file", "has no column 'txt'. It has: text, label. Did you mean 'text'?"),
    ({"data/label": "lable"}, "data.label: train file", "has no column 'lable'", "Did you mean 'label'?"),
    ({"data/where": {"label": "7"}}, "data.where: no row of train has 'label' = '7'. It has: 0, 1."),
    ({"data/labels": {0: "bad"}}, "data.labels: 20 of the 40 rows of train have a label that is not listed", "add the others to '0'"),
    ({"data/encoding": "utf-99"}, "data.encoding: Python knows no encoding 'utf-99'. Usual ones: utf-8"),
    ({"data": "imbd", "datasets": {"imdb": DATASET}}, "data: there is no 'imbd' among the `datasets`. Name one of them"),
    ({"runs": {"a": {"data": "imbd"}}, "datasets": {"imdb": DATASET}}, "runs.a.data: there is no 'imbd' among the `datasets`"),
    ({"data": "imdb", "datasets": {"imdb": 5}}, "datasets.imdb: expects the settings of a `data` section, not 5"),
    ({"data/labels": {0: " ", 1: "b"}}, "data.labels: the class of '0' has an empty name: give it one"),
    ({"model/adapters": {"target_modules": 5}}, "model.adapters.target_modules: expects a valid list, not 5."),
    ({"data/train": {"path": "no_files"}}, "data.train: path 'no_files': no file there", "no_files). Correct the path."),
    ({"datasets": ["imdb"]}, "datasets: expects names with the settings of a `data` section below them"),
]  # fmt: skip

BY_IMPORTING = [
    ({"train/optimizer": {"use": "torch.optim.AdamX"}}, "train.optimizer.use: `torch.optim` has no `AdamX`. Did you mean `Adam`?"),
    ({"model/use": "transformers.BertForSequenceClasification"}, "model.use: `transformers` has no", "Did you mean `BertForSequenceClassification`?"),
    ({"train/optimizer": {"use": "torch.optim"}}, "train.optimizer.use: `torch.optim` is a module. Name a class or function in it."),
    ({"train/strategy": {"use": "fsdp", "arguments": {"cpu_ofload": True}}}, "train.strategy.arguments.cpu_ofload: no such argument. Did you mean 'cpu_offload'?", "It takes: reshard_after_forward, cpu_offload"),
    ({"train/strategy": {"use": "hsdp", "arguments": {}}}, "train.strategy.arguments.shard: is missing. Give it a value."),
    ({"train/strategy": {"use": "single", "arguments": {"bucket_mb": 1}}}, "train.strategy.arguments.bucket_mb: no such argument. It takes none."),
    ({"train/schedule": {"use": "cosine", "arguments": {"low": 0.1}}}, "train.schedule.arguments.low: no such argument. Did you mean 'lowest'? It takes: lowest."),
    ({"train/optimizer": {"use": "torch.optim.AdamW", "arguments": {"eps": "small"}}}, "train.optimizer.arguments.eps: expects a valid number"),
    ({"train/callbacks": [{"use": "snaketrain.training.weight_average.WeightAverage", "arguments": {"decai": 1}}]}, "train.callbacks.0.arguments.decai: no such argument"),
    ({"train/task": {"use": "mine.py:Mine", "arguments": {"a": 1}}}, "train.task.arguments.a: no such argument. It takes none."),
    ({"train/trainer": {"use": "snaketrain.Trainer", "arguments": {"limit": 1}}}, "train.trainer.arguments.limit: no such argument. It takes none."),
    ({"train/trainer": {"use": "torch.optim.AdamW"}}, "train.trainer.use: `torch.optim.AdamW` is not a trainer. Derive it from snaketrain.Trainer."),
    ({"train/trainer": {"use": "mine.py:Minr"}}, "train.trainer.use: "),
    ({"model/arguments": {"hidden_size": "wide"}}, "model.arguments.hidden_size: expects a valid integer, not \"wide\"."),
    ({"train/optimizer": {"use": "optimizers.py:of_others"}}, "train.optimizer.use: `optimizers.py:of_others` leaves out 1 of the 1 parameters that it is given"),
    ({"train/metrics": {"best": {"use": "top_k_accuracy", "arguments": {"top_k": 0}}}, "data/labels": {0: "a", 1: "b"}}, "train.metrics.best: ", "top_k is 0, but there are 2 classes"),
    ({"train/task": {"use": "text_classification", "arguments": {"class_weights": {"0": -1}}}}, "train.task.arguments.class_weights.0: expects a number greater than or equal to 0, not -1."),
    ({"train/task": {"use": "module", "arguments": {"losses": {"output": {"use": "torch.nn.MSELoss", "weight": 0}}}}, "select/metric": "loss"}, "train.task.arguments: the weights of all losses are 0", "give one of them another weight"),
    ({"data/max_length": 2}, "data.max_length: 2 leaves no room for text, since 2 special tokens are added to each"),
    ({"model/arguments": {"num_labels": 3}}, "model.arguments.num_labels: is set by the labels of the data"),
]  # fmt: skip


def changed(changes: dict) -> dict:
    config = copy.deepcopy(BASE)
    for path, value in changes.items():
        *parents, last = path.split("/")
        place = config
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return config


def problems_of(changes: dict) -> list[str]:
    try:
        examine(changed(changes))
    except ConfigurationError as error:
        return error.problems
    return []


@pytest.fixture
def folder(tmp_path, monkeypatch, tiny_tokenizer):
    files = {
        "train.csv": "text,label\n" + "".join(f"film {i},{i % 2}\n" for i in range(40)),
        "one_class.csv": "text,label\n" + "good,1\n" * 30,
        "empty.csv": "text,label\n",
        "mine.py": "class Mine:\n    metrics: dict = {'loss': 'min', 'blue': None}\n",
        "broken.py": "x = 1\nclass Mine(:\n",
        "beside.py": "import broken\n\n\nclass Mine:\n    metrics = {'accuracy': 'max', **broken.more}\n",
        "heir.py": HEIRS,
        "optimizers.py": "import torch\n\n\ndef of_others(params, lr, weight_decay=0):\n    return torch.optim.SGD([torch.zeros(1)], lr)\n",
        "old.py": "class Names:\n    metrics = ('loss', 'blue')\n\n\nclass Words:\n    metrics = {'loss': 'minimum', 'blue': 'max'}\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "no_files").mkdir()
    (tmp_path / "tokenizer").symlink_to(tiny_tokenizer)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("changes", "words"), [(change, words) for change, *words in BAD], ids=[words[0][:60] for _, *words in BAD])
def test_problem_and_remedy_are_reported(folder, changes, words):
    found = problems_of(changes)
    reported = [problem for problem in found if problem.startswith(words[0])]
    assert len(reported) == 1, found
    assert all(word in reported[0] for word in words), reported
    assert reported[0].isprintable() and len(reported[0]) < 1000, "one line"


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"compute/loader_workers": "some"}, "compute.loader_workers"),
        ({"model/adapters": {"target_modules": ["query", {}]}}, "model.adapters.target_modules"),
        ({"train/task": {"use": "text_classification", "arguments": {"class_weights": {"0": -1}}}}, "train.task.arguments.class_weights"),
    ],
)
def test_a_value_that_may_be_of_several_types_has_one_problem(folder, changes, place):
    found = problems_of(changes)
    assert len([problem for problem in found if problem.startswith(place)]) == 1, found


@pytest.mark.parametrize(
    ("changes", "words"), [(change, words) for change, *words in BY_IMPORTING], ids=[words[0] for _, *words in BY_IMPORTING]
)
def test_what_the_code_has_and_takes_is_found_by_importing_it(folder, by_effect, changes, words):
    test_problem_and_remedy_are_reported(folder, {"model/arguments": SMALL} | changes, words)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"train": None, "runs": {"a": None, "b": {}, 1: {"train.seed": 1}}},
        {"data": None, "runs": {"a": {"data": "imdb"}, "b": {"data": DATASET}}, "datasets": {"imdb": DATASET}},
        {"data": {"train": {"path": "train.csv"}}, "runs": {"a": {"data.tokenizer": {"path": "tokenizer"}}}},
        {"data": "imdb", "datasets": {"imdb": DATASET}, "runs": {"a": {"data.max_length": 9}}},
        {"compute/processes": 40, "runs": {"a": {"train.batch_size": 64}}},
    ],
)
def test_what_every_run_corrects_is_not_a_problem(folder, changes):
    assert problems_of(changes) == []


def test_what_only_some_runs_lack_is_reported_for_those(folder):
    changes = {"data": None, "train/sed": 1, "runs": {"a": {"data": DATASET}, "b": {}}}
    assert [problem.partition(":")[0] for problem in problems_of(changes)] == ["train.sed", "runs.b.data"]


def test_the_workflow_reports_all_problems_at_once_and_starts_nothing(folder):
    import yaml

    runs = {"../x": {}, "a": {"train.sed": 1}, "b": {"data.max_length": "long"}}
    (folder / "bad.yaml").write_text(yaml.safe_dump(changed({"train/batch_size": 0, "select/mode": "most", "runs": runs})))
    command = [Path(sys.executable).with_name("snakemake"), "-n", "--snakefile", ROOT / "Snakefile", "--configfile", folder / "bad.yaml"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run(
        list(map(str, [*command, "--directory", folder])), capture_output=True, text=True, cwd=ROOT, timeout=limits.seconds(60)
    )
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before  # of computing: the machine may be busy
    printed = done.stdout + done.stderr
    assert done.returncode != 0
    places = [
        "train.batch_size: expects",
        'select.mode: "most"',
        "runs.../x: '../x'",
        "runs.a.train.sed: no",
        "runs.b.data.max_length: expects",
    ]
    assert [place for place in places if place not in printed] == [], printed
    assert "Traceback" not in printed
    assert not (folder / "results").exists()
    assert "Building DAG" not in printed
    assert seconds < limits.seconds(5)


def test_patterns_are_checked_against_the_names_of_the_parameters(folder, by_effect):
    model = {"model/arguments": SMALL, "train/sed": 1}
    wrong = model | {
        "train/freeze": ["bert.embedings.*", "model.bert.embeddings.*"],
        "train/groups": [{"match": "classifier.*"}, {"match": "head.*"}],
    }
    found = [problem for problem in problems_of(wrong) if "parameter" in problem]
    assert [problem.partition(". ")[0] for problem in found] == [
        "train.freeze.0: no parameter matches 'bert.embedings.*'",
        "train.groups.1.match: no parameter matches 'head.*'",
    ]
    assert "bert.embeddings" in found[0].partition("Did you mean")[2]
    assert any("nothing of the module `model` is left to train" in problem for problem in problems_of(model | {"train/freeze": ["*"]}))


def test_an_error_hides_no_other(folder, by_effect):
    changes = {
        "trian": {},
        "train/learning_rat": 1,
        "train/batch_size": 0,
        "train/optimizer": {"use": "torch.optim.AdamW", "arguments": {"lr": 1, "weight_decay": 50, "ep": 1}},
        "train/schedule": "lineer",
        "train/warmup": 30,
        "train/steps": 20,
        "model/arguments": {"hiden_size": 8, "num_layers": 1},
        "model/source": {"path": "nowhere"},
        "data/lable": "x",
        "data/text": "txt",
        "data/dev": {"path": "train.csv"},
        "select/metric": "acuracy",
        "runs": {"a/b": {}, "c": {"train.seed": -1}},
    }
    places = [
        "trian:", "train.learning_rat:", "train.batch_size:", "train.optimizer.arguments.lr:", "train.optimizer.arguments.weight_decay:",
        "train.optimizer.arguments.ep:", "train.schedule.use:", "train: `warmup`", "model.source:", "model.arguments.hiden_size:", "model.arguments.num_layers:", "data.lable:", "data.text:", "data.dev:",
        "select.metric:", "runs.a/b:", "runs.c.train.seed:",
    ]  # fmt: skip
    found = problems_of(changes)
    assert [place for place in places if not any(problem.startswith(place) for problem in found)] == [], found
    assert len(found) <= len(places) + 1, found  # and consequences are not reported


def test_the_configuration_of_a_model_is_the_one_beside_its_weights():
    """A sentence transformer has further ones in subfolders, for pooling and the like."""
    names = ["1_Pooling/config.json", "config.json", "2_Normalize/config.json", "model.safetensors"]
    assert model_config({name: Path("model") / name for name in names}) == Path("model/config.json")
    assert model_config({"model.safetensors": Path("model/model.safetensors")}) is None
