"""What a configuration does is tried before any job: names that exist and values of the right type may still be wrong."""

import functools
import os
import subprocess
import sys
from types import SimpleNamespace

import limits
import pytest
from transformers import BertConfig

from snaketrain.checking import runs as checking
from snaketrain.config.errors import ConfigurationError
from snaketrain.orchestration import effects
from snaketrain.orchestration.preflight import examine

SIZE = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
BASE = {
    "data": {"train": {"path": "train.csv"}, "tokenizer": {"path": "tokenizer"}, "labels": {0: "bad", 1: "good"}},
    "model": {"use": "transformers.BertForSequenceClassification", "arguments": SIZE},
    "train": {"steps": 20},
}
LANGUAGE = {
    "data": {"train": {"path": "train.csv"}, "tokenizer": {"path": "tokenizer"}, "label": None},
    "model": {"use": "transformers.LlamaForCausalLM", "arguments": SIZE | {"max_position_embeddings": 64}},
    "train": {"steps": 20, "task": "causal_lm", "block_length": 65},
    "select": {"metric": "loss"},
}
MODULE = {
    "data": {"train": {"use": "mine.py:Images"}},
    "model": {"use": "mine.py:Net"},
    "train": {"steps": 3, "task": {"use": "module", "arguments": {"losses": {"output": {"use": "torch.nn.MSELoss"}}}}},
    "select": {"metric": "loss"},
}
PRETRAINED = BASE | {"model": {"use": "transformers.BertForSequenceClassification", "source": {"path": "bert"}}}
ADAPTERS = {"r": 2, "target_modules": ["query"]}
MINE = """
import os
import sys
import time

import torch  # noqa: E402
from torch.testing._internal.two_tensor import TwoTensor
from snaketrain import Callback, Trainer
from snaketrain.strategies.ddp import Ddp
from snaketrain.tasks.metrics import Sum


class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, number):
        return torch.ones(3), torch.ones(2)


class Twice(Images):
    def precompute(self, numbers):
        return {"target": torch.ones(len(numbers), 2).numpy()}


class Net(torch.nn.Module):
    def __init__(self, width: int = 2):
        super().__init__()
        self.layer = torch.nn.Linear(3, width)

    def forward(self, inputs):
        return self.layer(inputs)


class Values(Net):
    def forward(self, inputs):
        if float(inputs.sum()) < 0:
            raise ValueError("negative")
        return self.layer(inputs.detach().numpy() @ torch.eye(3).numpy() if False else inputs)


def adam(params, lr):
    torch.optim.Adam(params, lr=lr)


class Compressed(torch.optim.SGD):
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["mean"] = TwoTensor(parameter.grad, parameter.grad)


def stops(params, lr):
    print("noise")
    sys.exit(3)


def leaves(params, lr):
    print("noise")
    os._exit(7)


def crashes(params, lr):
    os.kill(os.getpid(), 11)


def hangs(params, lr):
    time.sleep(3600)


def loss_maker():
    return lambda prediction, target: (prediction - target) ** 2


class Keyword(Net):
    def __init__(self, **further):
        super().__init__(width=further.pop("size", 2), **further)


class Keeping(Net):
    def __init__(self, **further):
        super().__init__()
        self.further = further


class Passing(Net):
    def __init__(self, depth: float = 1.0, **further):
        super().__init__(**further)


class Counted(Sum):
    higher_is_better = True

    def sum(self, prediction, target):
        return {"right": (prediction.argmax(1) == target).sum()}

    def compute(self, sums):
        return float(sums["right"])


class Underived:
    higher_is_better = True

    def compute(self, sums):
        return 0.0


class Forgetful(Ddp):
    def __init__(self, every=1):
        super().__init__()


class ForgetfulTrainer(Trainer):
    def __init__(self, limit=1):
        super().__init__()


class Misspelt(Callback):
    def on_steps_end(self, state, outcome): ...


class TooFew(Callback):
    def on_step_end(self, state): ...


class Helpful(Callback):
    def __init__(self, every=1): ...

    def on_log(self, *given): ...

    def on_step_end(self, state, outcome, again=False): ...


def rising(done, steps):
    return float("inf") if done == 7 else 1.0
"""
GROUPS = [{"match": "bert.*", "rate_scale": 0.5}, {"match": "bert.embeddings.*", "rate_scale": 0.1}]
# the configuration, the changed setting, its value, the beginning of the problem, and why it is wrong
WRONG = [
    (BASE, "train.schedule", {"use": "cosine", "arguments": {"lowest": -1}}, "train.schedule: `cosine` with lowest -1 gives -", "negative rates maximise the loss"),
    (BASE, "train.schedule", {"use": "warmup_stable_decay", "arguments": {"decay": 0}}, "train.schedule: `warmup_stable_decay`: ZeroDivisionError", "divides by it"),
    (BASE, "train.schedule", {"use": "inverse_square_root", "arguments": {"stable": 0}}, "train.schedule: `inverse_square_root`: ZeroDivisionError", "divides by it"),
    (BASE, "train.schedule", {"use": "cosine", "arguments": {"lowest": 5}}, "train.schedule: `cosine` with lowest 5 gives ", "exceeds the peak"),
    (BASE, "train.schedule", {"use": "torch.optim.lr_scheduler.CosineAnnealingLR", "arguments": {"eta_min": -1}}, "train.schedule: `torch.optim.lr_scheduler.CosineAnnealingLR` with eta_min -1 gives -", "negative rates"),
    (BASE, "train.schedule", {"use": "torch.optim.lr_scheduler.ReduceLROnPlateau", "arguments": {"min_lr": -1}}, "train.schedule.arguments.min_lr: is -1", "negative rates"),
    (BASE, "train.schedule", "mine.py:rising", "train.schedule: `mine.py:rising` gives inf at step 8 of 20", "no rate"),
    (BASE, "train.groups", [{"match": "bert.*", "schedule": {"use": "cosine", "arguments": {"lowest": -1}}}], "train.groups.0.schedule: `cosine` with lowest -1", "negative rates"),
    (BASE, "data.max_length", 1000, "data.max_length: is 1000, but the model has 512 positions. Set data.max_length: 512, or raise", "no such positions"),
    (LANGUAGE, "train.block_length", 65, "train.block_length: is 65, but the model has 64 positions", "no such positions"),
    (BASE, "model.arguments", SIZE | {"vocab_size": 3}, "model.arguments.vocab_size: the tokenizer has ", "tokens without an embedding"),
    (BASE, "model.arguments", SIZE | {"hidden_dropout_prob": 2}, "model.arguments: `transformers.BertForSequenceClassification`: ValueError: dropout", "no probability"),
    (BASE, "train.task", {"use": "text_classification", "arguments": {"class_weights": {"bad": 0, "good": 0}}}, "train.task.arguments.class_weights: all are 0", "nothing is learnt"),
    (BASE, "train.groups", GROUPS, "train.groups.1.match: \"bert.embeddings.*\" only matches parameters that train.groups.0 ('bert.*') takes first", "shadowed"),
    (BASE, "train.optimizer", "mine.py:adam", "train.optimizer.use: `mine.py:adam` returns nothing, not an optimizer", "no optimizer"),
    (BASE, "train.optimizer", "mine.py:stops", "train.optimizer: `mine.py:stops` ends the process by SystemExit(3)", "exits"),
    (BASE, "train.optimizer", "mine.py:Compressed", "train.optimizer: Compressed keeps its state in tensors of a class of its own (TwoTensor)", "no exact resume"),
    (BASE, "train.optimizer", {"use": "torch.optim.AdamW", "arguments": {"eps": -1}}, "train.optimizer: torch.optim.AdamW: Invalid epsilon", "refused by torch"),
    (MODULE, "train.task.arguments.losses.output.use", "mine.py:loss_maker", "train.task", "a factory, not a loss"),
    (MODULE, "train.task.arguments.losses.output.target", "taget", "train.task.arguments.losses.output.target: the data has no field 'taget'. It has: inputs, target", "no such field"),
    (MODULE, "model", {"use": "mine.py:Passing", "arguments": {"wdth": 2}}, "model.arguments: `mine.py:Passing`: TypeError: Net.__init__() got an unexpected keyword argument 'wdth'", "no argument of a base"),
    (MODULE, "model", {"use": "mine.py:Keyword", "arguments": {"sizes": 2}}, "model.arguments: `mine.py:Keyword`: TypeError", "no argument that its signature does not name"),
    (BASE, "train.metrics", {"counted": {"use": "mine.py:Counted"}}, "train.task: `text_classification`: NotImplementedError: Counted must define what it adds up: override `sums`", "a misspelt method"),
    (BASE, "evaluate.metrics", {"counted": {"use": "mine.py:Counted"}}, "train.task: `text_classification`: NotImplementedError: Counted must define", "found after the training"),
    (BASE, "train.metrics", {"counted": {"use": "mine.py:Underived"}}, "train.task: `text_classification`: AttributeError: 'Underived' object has no attribute 'sums'", "has no base class"),
    (BASE, "train.strategy", {"use": "mine.py:Forgetful", "arguments": {"every": 2}}, "train.strategy.use: the `__init__` of `mine.py:Forgetful` does not take `device` and `precision`. Let it take `**options`", "is not given to its base"),
    (BASE, "train.trainer", {"use": "mine.py:ForgetfulTrainer", "arguments": {"limit": 2}}, "train.trainer.use: the `__init__` of `mine.py:ForgetfulTrainer` does not take what every trainer is made of. Let it take `*arguments, **options`", "is not given to its base"),
    (BASE, "train.callbacks", ["mine.py:Misspelt"], "train.callbacks.0.use: `mine.py:Misspelt` has a method `on_steps_end`, which is never called. Did you mean 'on_step_end'?", "would do nothing"),
    (BASE, "train.callbacks", ["mine.py:TooFew"], "train.callbacks.0.use: `on_step_end` of `mine.py:TooFew` is called with other arguments. Define it as `def on_step_end(self, state, outcome)`", "fails in the first step"),
    (MODULE, "data.train.use", "mine.py:Twice", "data.train: mine.py:Twice gives `target` in its items and by `precompute`", "one would replace the other"),
    (MODULE, "model.arguments", {"width": 3}, "train.task: `module`: RuntimeError", "other shapes than the target"),
]  # fmt: skip


def changed(config, where, value):
    key, _, rest = where.partition(".")
    return config | {key: changed(config.get(key, {}), rest, value) if rest else value}


def problems_of(config):
    try:
        examine(config)
    except ConfigurationError as error:
        return error.problems
    return []


@pytest.fixture
def folder(tmp_path, monkeypatch, tiny_tokenizer):
    (tmp_path / "train.csv").write_text("text,label\n" + "".join(f"film {i},{i % 2}\n" for i in range(40)))
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "tokenizer").symlink_to(tiny_tokenizer)
    (tmp_path / ".snakemake").mkdir()
    BertConfig(**SIZE).save_pretrained(tmp_path / "bert")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("config", "where", "value", "begins"), [each[:4] for each in WRONG], ids=[f"{each[1]}: {each[4]}" for each in WRONG]
)
def test_what_would_fail_or_learn_nothing_is_refused(folder, by_effect, config, where, value, begins):
    found = problems_of(changed(config, where, value))
    assert any(problem.startswith(begins) for problem in found), found
    assert len(found) == 1


@pytest.mark.parametrize(
    ("config", "where", "value"),
    [
        (BASE, "train.steps", 20),
        (LANGUAGE, "train.block_length", 64),
        (MODULE, "train.steps", 3),
        (MODULE, "model", {"use": "mine.py:Keyword", "arguments": {"size": 2}}),  # which its signature does not name
        (MODULE, "model", {"use": "mine.py:Keeping", "arguments": {"anything": 2}}),
        (MODULE, "model", {"use": "mine.py:Passing", "arguments": {"depth": 3, "width": 2}}),
        (MODULE, "model.use", "mine.py:Values"),  # which cannot run without values
        (BASE, "train.schedule", "torch.optim.lr_scheduler.ReduceLROnPlateau"),
        (PRETRAINED, "model.adapters", ADAPTERS),
        (PRETRAINED, "model.arguments", {"dtype": "bfloat16"}),
        (PRETRAINED | {"model": PRETRAINED["model"] | {"adapters": ADAPTERS}}, "model.arguments", {"dtype": "bfloat16"}),
        (BASE, "train.groups", GROUPS[::-1]),
        (BASE, "train.callbacks", [{"use": "mine.py:Helpful", "arguments": {"every": 2}}]),
    ],
)
def test_what_works_is_accepted(folder, by_effect, config, where, value):
    assert problems_of(changed(config, where, value)) == []


# --- the process


@pytest.fixture
def in_a_process(folder, monkeypatch):
    monkeypatch.delenv("SNAKETRAIN_CHECKS", raising=False)
    monkeypatch.setattr(effects, "SECONDS_AN_ATTEMPT", float(limits.whole_seconds(3)))


class Forked:
    """In place of a `Popen`: forked from this process, which has imported torch already."""

    def __init__(self, command, *, stdin, stdout, stderr, start_new_session):
        reading, writing = os.pipe()
        if not (pid := os.fork()):
            try:
                os.setsid()
                for number, file in enumerate((stdin.fileno(), writing, stderr.fileno())):
                    os.dup2(file, number)
                sys.stdin, sys.stderr = open(0), open(2, "w")  # noqa: SIM115 - pytest has others
                checking.main()
            finally:
                os._exit(1)
        os.close(writing)
        self.pid, self.stdout = pid, os.fdopen(reading, "rb")
        self.wait = functools.cache(lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


@pytest.fixture
def forks(monkeypatch):
    return lambda: monkeypatch.setattr(effects, "subprocess", SimpleNamespace(Popen=Forked, PIPE=subprocess.PIPE))


def test_what_ends_or_holds_the_process_is_the_fault_of_that_object(in_a_process, forks, capfd):
    forks()
    uses = {
        "leaves": "ends with exit code 7",
        "crashes": "is killed by SIGSEGV",
        "hangs": f"has not returned after {effects.SECONDS_AN_ATTEMPT:g} seconds",
    }
    runs = {use: {"train.optimizer": f"mine.py:{use}"} for use in uses}
    found = problems_of(BASE | {"runs": runs | {"fine": {}, "other": {"train.schedule": {"use": "cosine", "arguments": {"lowest": -1}}}}})
    for use, how in uses.items():
        assert any(problem.startswith(f"train.optimizer: `mine.py:{use}` {how}") and f"(run {use})" in problem for problem in found), found
    assert any("`cosine` with lowest -1" in problem for problem in found)  # nothing hides another problem
    assert len(found) == 4
    assert "noise" not in capfd.readouterr().out


def test_of_settings_that_contradict_each_other_only_the_names_are_tried(in_a_process, forks, capfd):
    """They neither end the process, which would hide what is wrong elsewhere, nor count as right afterwards."""
    forks()
    contradiction, heads = {"train.save_every": 5, "train.save_every_minutes": 5}, {"model.arguments": SIZE | {"num_attention_heads": 3}}
    runs = {"wrong": contradiction | {"model.arguments": {"hiden_size": 8}}, "other": heads}
    found = sorted(problem.partition(":")[0] for problem in problems_of(BASE | {"runs": runs}))
    assert found == ["model.arguments", "model.arguments.hiden_size", "runs.wrong.train"]
    assert "not checked by trying" not in capfd.readouterr().err
    assert [problem.partition(":")[0] for problem in problems_of(BASE | {"runs": {"a": contradiction | heads}})] == ["runs.a.train"]
    assert [problem.partition(":")[0] for problem in problems_of(BASE | {"runs": {"a": heads}})] == ["model.arguments"]


def test_an_unchanged_start_imports_nothing_and_a_changed_file_is_checked_again(in_a_process, forks, folder, monkeypatch):
    config = MODULE | {"runs": {"a": {}, "b": {"train.seed": 7}}}
    assert problems_of(config) == []
    started = []
    process = effects._one_process
    monkeypatch.setattr(effects, "_one_process", lambda *asked: started.append(asked) or process(*asked))
    assert problems_of(config | {"tracking": {"notes": "new"}}) == []
    assert not started
    (folder / "mine.py").write_text(MINE.replace("torch.ones(2)", "torch.ones(5)"))
    forks()
    assert any("RuntimeError" in problem for problem in problems_of(config))
    assert len(started) == 1


def test_a_machine_without_torch_says_what_it_has_not_checked(in_a_process, folder, monkeypatch, capfd):
    (folder / "torch.py").write_text("raise ImportError('no torch here')\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    assert problems_of(BASE) == []
    assert "not checked by trying: the process that tries ends with exit code 1 (ImportError: no torch here)" in capfd.readouterr().err
