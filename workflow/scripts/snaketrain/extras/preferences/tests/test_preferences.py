"""Pairs of answers as tokens, the losses by their formulas, and a workflow that learns which answers are preferred on one process and on two."""

import gzip
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from distributed.running import train
from pipeline.workspace import KIND, UNKIND, configuration, make_workspace, snakemake, write_tokenizer
from safetensors.torch import load_file
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import log_softmax, logsigmoid
from transformers import BertConfig, BertLMHeadModel, LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, PreTrainedTokenizerFast

from snaketrain.checking import Findings
from snaketrain.checking.runs import check
from snaketrain.config.runs import read_runs
from snaketrain.config.schema import Model, Settings
from snaketrain.config.schema.model import Adapters
from snaketrain.data.cells import BadData
from snaketrain.evaluation.predictions import metric_of, read_predictions
from snaketrain.extras.preferences import answers
from snaketrain.extras.preferences.check import problems_of_run
from snaketrain.extras.preferences.pairs import Pairs
from snaketrain.extras.preferences.task import Preferences, log_odds, point_of_batch

SMALL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 64}
TRAIN = configuration()["train"] | {"task": {"use": "preferences"}, "epochs": 4, "batch_size": 16}
KTO = {"loss": "kto", "beta": 0.5, "undesirable_weight": 0.05}  # with which the point is above 0 in some steps
ADAPTERS = {"r": 8, "target_modules": ["q_proj", "v_proj", "down_proj"]}
TEMPLATE = (
    "{% for message in messages %}{{ message.role }} {{ message.content }} {% endfor %}{% if add_generation_prompt %}assistant {% endif %}"
)


def pairs(count: int) -> list[dict[str, str]]:
    """The kind answer is preferred."""
    given = [("the film", "is"), ("this story", "was"), ("it is a", "very")]
    rows = []
    for number in range(count):
        prompt, verb = given[number % 3]
        kind, unkind = KIND[number % len(KIND)], UNKIND[number * 2 % len(UNKIND)]
        rows.append({"prompt": prompt, "chosen": f"{verb} {kind}", "rejected": f"{verb} very {unkind}"})
    return rows


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Path:
    """A folder that transformers reads, with a chat template."""
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    fast = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), pad_token="[PAD]", eos_token="[SEP]", unk_token="[UNK]")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def weights(tokenizer, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(0)
    size = len(PreTrainedTokenizerFast.from_pretrained(tokenizer))
    LlamaForCausalLM(LlamaConfig(vocab_size=size, initializer_range=0.3, **SMALL)).save_pretrained(folder)
    return folder


def test_in_a_plan_the_point_of_kto_has_no_value():
    with FakeTensorMode():
        assert point_of_batch(torch.arange(3), torch.zeros(3)) == 0.0


# --- a workflow


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tokenizer, weights) -> Path:
    folder = tmp_path_factory.mktemp("preferences")
    path = write(folder / "pairs.jsonl", pairs(81))  # of which the training gets 49, so that a last batch has a single one
    source = {
        "use": "snaketrain.extras.preferences.pairs.Pairs",
        "arguments": {"path": str(path), "tokenizer": str(tokenizer), "max_length": 64},
    }
    orpo = {"train.task.arguments": {"loss": "orpo"}, "train.learning_rate": 5e-2, "model.adapters": ADAPTERS}
    lora = {"train.learning_rate": 5e-2, "model.adapters": ADAPTERS}
    kto = {"train.task.arguments": KTO, "data.train.arguments.mismatched": True}
    reward = {"train.task.arguments": {"loss": "reward"}, "model.use": "transformers.LlamaForSequenceClassification"}
    make_workspace(
        folder,
        data={"name": "pairs", "train": source, "dev_fraction": 0.2, "test_fraction": 0.2},
        model={"use": "transformers.LlamaForCausalLM", "source": {"path": str(weights)}},
        train=TRAIN | {"learning_rate": 1e-2},
        select={"metric": "accuracy"},
        tracking=configuration()["tracking"] | {"log_every_steps": 1},
        runs={
            "one": {},
            "sharded": {"compute.processes": 2, "train.strategy": "fsdp"},
            "reward": reward,
            "orpo": orpo,
            "kto": kto,
            "lora": lora,
            "prepared": {"data.train.arguments.reference": str(weights), "compute.processes": 2},
        },
    )
    snakemake(folder)
    return folder


def events(folder: Path, run: str, kind: str) -> list[dict]:
    lines = (folder / f"results/runs/{run}/training/journal.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def journal(folder: Path, run: str, kind: str) -> list[dict]:
    return [event["metrics"] for event in events(folder, run, kind)]


def test_two_processes_equal_one_and_preferences_are_learnt(finished):
    losses = [[each["loss"] for each in journal(finished, run, "train")] for run in ("one", "sharded")]
    assert len(losses[0]) > 5 and losses[0] == pytest.approx(losses[1], rel=1e-5)
    before, *_, after = journal(finished, "one", "eval")
    assert before["loss"] == pytest.approx(0.693147, abs=1e-5) and before["margin"] == pytest.approx(0, abs=1e-6)  # equal to the reference
    assert after["accuracy"] > 0.9 and after["margin"] > 0.1 and after["chosen_reward"] > after["rejected_reward"]
    rewards = journal(finished, "reward", "eval")[-1]
    assert rewards["accuracy"] > 0.9 and rewards["margin"] > 0.1


def test_a_reference_that_is_computed_with_the_data_gives_the_same_training(finished):
    """On two processes, by another layout of batches, and without a second model in memory, checkpoints or the selected model."""
    losses, margins = ([each[name] for each in journal(finished, "prepared", "train")] for name in ("loss", "margin"))
    beside = journal(finished, "one", "train")
    assert losses == pytest.approx([each["loss"] for each in beside], rel=1e-5) and len(losses) > 5
    assert margins == pytest.approx([each["margin"] for each in beside], rel=1e-4, abs=1e-5)
    results = [
        json.loads((finished / f"results/runs/{run}/evaluation/test_results.json").read_text())["metrics"] for run in ("prepared", "one")
    ]
    assert results[0] == pytest.approx(results[1], rel=1e-4, abs=1e-5)
    folder = finished / "results/runs/prepared"
    for model in (folder / "selection/model", *(folder / "training/checkpoints").glob("step-*")):
        assert {path.name for path in model.glob("*.safetensors")} == {"model.safetensors"}
    (log,) = (path for path in finished.glob("logs/prepare_data/*.log") if "log probabilities" in path.read_text())
    assert "of the answers of 49 pairs, in fp32 on cpu" in log.read_text()


@pytest.mark.parametrize(("run", "arguments", "rate", "adapters", "strategy"), [
    ("orpo", {"loss": "orpo"}, 5e-2, ADAPTERS, "ddp"), ("kto", KTO, 1e-2, None, "ddp"),
    ("lora", {}, 5e-2, ADAPTERS, "ddp"), ("lora", {}, 5e-2, ADAPTERS, "fsdp"),
])  # fmt: skip
def test_two_processes_equal_one(finished, tmp_path, run, arguments, rate, adapters, strategy):
    (data,) = (
        path
        for path in finished.glob("results/data/*/manifest.json")
        if (facts := json.loads(path.read_text())["facts"])["mismatched"] == (run == "kto") and not facts["reference"]
    )
    (pretrained,) = finished.glob("results/models/*/manifest.json")
    model = Model(use="transformers.LlamaForCausalLM", source={"path": "given"}, adapters=adapters)
    settings = TRAIN | {"task": {"use": "preferences", "arguments": arguments}, "learning_rate": rate, "strategy": strategy}
    on_two = train(data, tmp_path / "two", 2, model=model, pretrained=pretrained, **settings)
    on_one = {event["step"]: event["metrics"]["loss"] for event in events(finished, run, "train")}
    assert len(on_one) > 5 and {step: on_two[step] for step in on_one} == pytest.approx(on_one, rel=1e-5)


def test_kto_learns_what_is_preferred(finished):
    before, *_, after = journal(finished, "kto", "eval")
    assert "loss" not in after and before["kl"] == pytest.approx(0, abs=1e-6)
    assert after["accuracy"] > 0.8 and after["margin"] > 0.1
    first, *others = journal(finished, "kto", "train")
    assert first["loss"] == pytest.approx((1 + 0.05) / 4, abs=1e-5), "all rewards are 0 at the start"
    assert max(each["kl"] for each in others) > 0.1


def test_orpo_learns_with_adapters_and_without_a_reference(finished):
    before, *_, after = journal(finished, "orpo", "eval")
    assert after["nll"] < before["nll"] and after["log_odds_ratio"] > before["log_odds_ratio"] and after["accuracy"] > 0.9
    assert {path.name for path in (finished / "results/runs/orpo/selection/model").glob("*.safetensors")} == {"model.safetensors"}


def test_with_adapters_the_model_without_them_is_the_reference(finished):
    before, *_, after = journal(finished, "lora", "eval")
    assert before["loss"] == pytest.approx(0.693147, abs=1e-5) and after["margin"] > 0.1 and after["accuracy"] > 0.9
    for checkpoint in (finished / "results/runs/lora/training/checkpoints").glob("step-*"):
        assert {path.name for path in checkpoint.glob("*.safetensors")} == {"model.safetensors"}


@pytest.mark.parametrize("run", ["one", "sharded", "lora"])
def test_an_evaluation_compares_with_the_same_reference(finished, weights, run):
    last = journal(finished, run, "eval")
    results = json.loads((finished / f"results/runs/{run}/evaluation/dev_results.json").read_text())["metrics"]
    assert any(results == pytest.approx(each, rel=1e-4, abs=1e-5) for each in last[1:])
    folder = finished / f"results/runs/{run}/evaluation"
    predictions = read_predictions(folder, "dev", json.loads((folder / "dev_results.json").read_text()))
    assert all(metric_of(name, predictions) for name in ("accuracy", "margin", "loss")), "by which the comparison tests them"
    before, after = (load_file(folder / f"{name}.safetensors") for folder, name in (
        (weights, "model"), (finished / f"results/runs/{run}/selection/model", "reference")
    ))  # fmt: skip
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_model_can_be_loaded(finished):
    model = finished / "results/runs/one/selection/model"
    assert (
        isinstance(LlamaForCausalLM.from_pretrained(model), LlamaForCausalLM)
        and PreTrainedTokenizerFast.from_pretrained(model).chat_template
    )


# --- losses


def batch_of(tokenizer: Path, folder: Path, **arguments) -> dict[str, torch.Tensor]:
    made = Pairs(str(write(folder / "pairs.jsonl", pairs(7))), str(tokenizer), **arguments)
    return made.collate([made[number] for number in range(len(made))])


def by_hand(module: LlamaForCausalLM, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of each answer's log probabilities, and its number of tokens, one answer at a time and without padding."""
    sums, counts = [], []
    pairs, sides, _ = batch["input_ids"].shape
    for pair in range(pairs):
        for side in range(sides):
            length = int(batch["attention_mask"][pair, side].sum())
            tokens, answer = batch["input_ids"][pair, side, :length], batch["answers"][pair, side, :length].bool()
            found = log_softmax(module(tokens[None]).logits[0], -1)[torch.arange(length - 1), tokens[1:]]
            sums.append(found[answer[1:]].sum()), counts.append(int(answer.sum()))
    return torch.stack(sums).view(pairs, sides), torch.tensor(counts).view(pairs, sides)


@pytest.mark.parametrize(("arguments", "of_margins"), [
    ({}, lambda margins: -logsigmoid(0.1 * margins)),
    ({"beta": 0.5, "label_smoothing": 0.2}, lambda margins: -0.8 * logsigmoid(0.5 * margins) - 0.2 * logsigmoid(-0.5 * margins)),
    ({"loss": "ipo", "beta": 0.2}, lambda margins: (margins - 2.5) ** 2),
])  # fmt: skip
def test_losses_are_those_of_the_formulas(tokenizer, weights, tmp_path, arguments, of_margins):
    batch, task = batch_of(tokenizer, tmp_path), Preferences(**arguments)
    modules = task.build({"use": "transformers.LlamaForCausalLM", "arguments": {}}, weights, facts_of(tokenizer))
    with torch.no_grad():
        for parameter in modules["model"].parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())))
        (now, counts), (before, _) = by_hand(modules["model"], batch), by_hand(modules["reference"], batch)
    ratios = (now - before) / (counts if task.loss == "ipo" else 1)
    loss, _ = task.training_step(modules, batch)
    assert loss.item() == pytest.approx(of_margins(ratios[:, 0] - ratios[:, 1]).sum().item(), rel=1e-4)
    loss.backward()
    assert all(parameter.grad is None for parameter in modules["reference"].parameters())


def facts_of(tokenizer: Path) -> dict:
    return {
        "tokenizer": str(tokenizer),
        "vocab_size": len(PreTrainedTokenizerFast.from_pretrained(tokenizer)),
        "pad_token_id": 0,
        "max_length": 64,
        "mismatched": False,
        "reference": False,
    }


def test_orpo_is_the_formula_of_its_paper(tokenizer, weights, tmp_path):
    batch, task = batch_of(tokenizer, tmp_path), Preferences("orpo", beta=0.3)
    modules = task.build({"use": "transformers.LlamaForCausalLM", "arguments": {}}, weights, facts_of(tokenizer))
    assert set(modules) == {"model"}
    sums, counts = by_hand(modules["model"], batch)
    likely = (sums / counts).double().exp()  # by token, as equation 5 has it
    odds = likely / (1 - likely)
    ratios = (odds[:, 0] / odds[:, 1]).log()
    loss, logged = task.training_step(modules, batch)
    assert loss.item() == pytest.approx((-likely[:, 0].log() - 0.3 * logsigmoid(ratios)).sum().item(), rel=1e-5)
    assert logged["log_odds_ratio"].item() == pytest.approx(ratios.sum().item(), rel=1e-4)
    assert logged["nll"].item() == pytest.approx(-likely[:, 0].log().sum().item(), rel=1e-5)
    assert {*logged, "loss"} == {*task.metrics} and not {"nll", "log_odds_ratio"} & {*Preferences("dpo").metrics}


@pytest.mark.parametrize("sign", [1, -1])
def test_kto_is_the_formula_of_its_paper(tokenizer, weights, tmp_path, sign):
    batch, task = batch_of(tokenizer, tmp_path, mismatched=True), Preferences("kto", 0.3, desirable_weight=1.2, undesirable_weight=0.8)
    batch["ids"] = torch.arange(7)
    model = {"use": "transformers.LlamaForCausalLM", "arguments": {}}
    modules = task.build(model, weights, facts_of(tokenizer) | {"mismatched": True})
    with torch.no_grad():
        modules["model"].lm_head.weight.mul_(1 + sign * 0.5)  # surer of what it says, or less sure
        ratios = by_hand(modules["model"], batch)[0] - by_hand(modules["reference"], batch)[0]
    chosen, rejected, *others = ratios.unbind(1)
    gained = torch.cat(others).mean()
    point = max(gained, torch.tensor(0.0))
    good, bad = 1.2 * (1 - torch.sigmoid(0.3 * (chosen - point))), 0.8 * (1 - torch.sigmoid(0.3 * (point - rejected)))
    loss, logged = task.training_step(modules, batch)
    assert loss.item() == pytest.approx(torch.cat([good, bad]).mean().item() * 7, rel=1e-5)
    assert logged["kl"].item() == pytest.approx(gained.item() * 7, rel=1e-4) and abs(gained) > 0.1
    assert {*logged} == {*task.metrics}


def test_an_answer_that_is_certain_has_finite_gradients():
    likely = torch.tensor([[0.0, -1.0], [1e-7, -20.0]], requires_grad=True)  # rounding may lead above 0
    odds = log_odds(likely)
    odds.sum().backward()
    assert odds.isfinite().all() and likely.grad.isfinite().all()


def test_a_model_that_sees_the_answers_is_refused(tokenizer):
    with pytest.raises(SystemExit, match=r"model\.use: transformers.BertForMaskedLM attends to the tokens that it has to predict"):
        Preferences("orpo").build({"use": "transformers.BertForMaskedLM", "arguments": SMALL}, None, facts_of(tokenizer))


def test_a_reward_model_compares_the_last_tokens(tokenizer, tmp_path):
    batch, task = batch_of(tokenizer, tmp_path), Preferences("reward")
    facts = facts_of(tokenizer)
    modules = task.build({"use": "transformers.LlamaForSequenceClassification", "arguments": SMALL}, None, facts)
    model: LlamaForSequenceClassification = modules["model"]
    rewards = []
    for ids, mask in zip(batch["input_ids"].flatten(0, 1), batch["attention_mask"].flatten(0, 1), strict=True):
        rewards.append(model(ids[mask > 0][None]).logits[0, 0])
    chosen, rejected = torch.stack(rewards).view(-1, 2).unbind(1)
    found = task.rewards(modules, batch)
    assert task.losses(found).tolist() == pytest.approx((-logsigmoid(chosen - rejected)).tolist(), rel=1e-4)
    with pytest.raises(SystemExit, match="has no padding token"):
        task.build({"use": "transformers.LlamaForSequenceClassification", "arguments": SMALL}, None, facts | {"pad_token_id": None})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss": "ppo"}, "ppo is not one of"),
        ({"beta": 0}, "above 0"),
        ({"label_smoothing": 0.5}, "below 0.5"),
        ({"loss": "ipo", "label_smoothing": 0.1}, "only with dpo or reward"),
        ({"loss": "orpo", "label_smoothing": 0.1}, "only with dpo or reward"),
        ({"loss": "orpo", "desirable_weight": 0.5}, "only with kto"),
        ({"loss": "kto", "undesirable_weight": 0}, "above 0"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(SystemExit, match=message):
        Preferences(**arguments)


def settings(arguments, model=None, **others) -> Settings:
    data, model = others.pop("data", {"train": {"use": "own.py:Own"}}), {"use": "transformers.LlamaForCausalLM", **(model or {})}
    task = {"use": "preferences", "arguments": arguments}
    return Settings.model_validate({"data": data, "model": model, "train": {"task": task, **others.pop("train", {})}, **others})


def test_what_a_reference_cannot_have_is_refused_before_any_job():
    (random,) = problems_of_run(settings({}))
    assert random.startswith("model.source: is missing: `dpo` holds the model to where it started")
    pretrained = {"source": {"path": "llama"}}
    (adapted,) = problems_of_run(settings({}, pretrained | {"adapters": {"r": 2, "lora_dropout": 0.1}}))
    assert adapted.startswith("model.adapters.lora_dropout: has no effect")
    sets = {"train": {"use": "own.py:Own", "arguments": {"reference": "llama"}}, "dev": {"use": "own.py:Own"}}
    (lacking,) = problems_of_run(settings({}, pretrained, data=sets))
    assert lacking == "data.dev.arguments.reference: is missing, and train has it. Give it to all sets, or to none."
    (padded,) = problems_of_run(settings({"loss": "reward"}, {"arguments": {"pad_token_id": 0}}))
    assert padded.startswith("model.arguments.pad_token_id: is set by the tokenizer")
    assert not [
        *problems_of_run(settings({}, pretrained | {"adapters": {"r": 2}})),
        *problems_of_run(settings({"loss": "orpo"})),
        *problems_of_run(settings({"loss": "reward"}, pretrained | {"adapters": {"r": 2}})),
    ]


def test_more_tokens_than_the_model_has_positions_are_refused(tokenizer, weights, tmp_path):
    """By `max_length` before any job; without one in the batch that has them."""
    model = {"use": "transformers.LlamaForCausalLM", "arguments": {}}
    with pytest.raises(SystemExit, match=r"may have 65 tokens with their prompt, but transformers.LlamaForCausalLM has 64 positions"):
        Preferences().build(model, weights, facts_of(tokenizer) | {"max_length": 65})
    task = Preferences()
    modules = task.build(model, weights, facts_of(tokenizer) | {"max_length": None})
    long = Pairs(str(write(tmp_path / "long.jsonl", [pairs(1)[0] | {"chosen": "good " * 70}])), str(tokenizer), max_length=None)
    with pytest.raises(SystemExit, match="Make the argument `max_length` smaller"):
        task.training_step(modules, long.collate([long[0]]))


def test_a_head_that_is_trained_in_full_is_refused_beside_adapters(tokenizer, weights):
    adapters = Adapters(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"]).model_dump()
    model = {"use": "transformers.LlamaForCausalLM", "arguments": {}, "adapters": adapters}
    with pytest.raises(SystemExit, match=r"model\.adapters: lm_head would be trained in full"):
        Preferences().build(model, weights, facts_of(tokenizer))


def test_a_step_of_each_loss_can_be_tried_before_any_job(tokenizer, weights, tmp_path):
    source = {"use": "snaketrain.extras.preferences.pairs.Pairs", "arguments": {"tokenizer": str(tokenizer), "max_length": 64}}
    source["arguments"] |= {"path": str(write(tmp_path / "pairs.jsonl", pairs(6)))}
    kto = {"train.task.arguments": KTO, "data.train.arguments.mismatched": True}
    path = Path(source["arguments"]["path"])
    path.write_text("\ufeff" + path.read_text())
    config = {
        "data": {"train": source},
        "model": {"use": "transformers.LlamaForCausalLM", "source": {"path": str(weights)}},
        "train": {"task": {"use": "preferences"}, "steps": 2},
        "select": {"metric": "accuracy"},
        "runs": {
            "dpo": {},
            "orpo": {"train.task.arguments": {"loss": "orpo"}, "model.adapters": ADAPTERS},
            "kto": kto | {"data.train.arguments.reference": str(weights)},
            "lora": {"model.adapters": ADAPTERS},
            "reward": {"train.task.arguments": {"loss": "reward"}, "model.use": "transformers.LlamaForSequenceClassification"},
        },
    }
    said: list[dict] = []
    check(read_runs(config), Findings(said.append), tmp_path)
    assert not [found for found in said if "problem" in found]
    assert sum(found["attempt"] == "train.task" for found in said) == 2 * len(config["runs"])  # that the task is made, and takes a step
    path.write_text("{'prompt'")
    check(read_runs(config), Findings(said.append), tmp_path)
    (problem, *_) = [found["problem"] for found in said if "problem" in found]
    assert problem.startswith(f"data.train: {path}, line 1: not JSON")


def test_kto_asks_for_other_answers_and_for_whole_batches(tokenizer, tmp_path):
    for loss, mismatched in (("kto", False), ("dpo", True)):
        with pytest.raises(SystemExit, match="must be true for kto"):
            Preferences(loss).build({}, None, facts_of(tokenizer) | {"mismatched": mismatched})
    batch = batch_of(tokenizer, tmp_path)
    with pytest.raises(SystemExit, match="must be true for kto"):  # a development set of its own
        Preferences("kto").rewards({}, batch)
    run = settings(KTO, {"source": {"path": "llama"}}, train={"accumulate": 2}, compute={"reduce_batch_on_oom": True})
    assert [problem.partition(":")[0] for problem in problems_of_run(run)] == ["train.accumulate", "compute.reduce_batch_on_oom"]


# --- a reference that is computed with the data


def test_a_reference_finds_what_the_formula_says(tokenizer, weights, tmp_path, monkeypatch):
    """Of all sides, in the order that is asked for, however many pairs a batch has."""
    path = write(tmp_path / "pairs.jsonl", pairs(7))
    made = Pairs(str(path), str(tokenizer), mismatched=True, reference=str(weights))
    numbers = np.array([5, 0, 6, 2])
    expected, _ = by_hand(LlamaForCausalLM.from_pretrained(weights), made.collate([made[number] for number in numbers]))
    for most in (1, 80, 2**14):
        monkeypatch.setattr(answers, "MOST_TOKENS", most)
        assert made.precompute(numbers)["reference"] == pytest.approx(expected.detach().numpy(), rel=1e-5)
    rounded = Pairs(str(path), str(tokenizer), mismatched=True, reference=str(weights), reference_precision="bf16").precompute(numbers)
    assert rounded["reference"].dtype == np.float32 and rounded["reference"] == pytest.approx(expected.detach().numpy(), rel=0.05)


def test_what_is_no_reference_is_refused(tokenizer, weights, tmp_path):
    path, numbers = str(write(tmp_path / "pairs.jsonl", pairs(3))), np.arange(3)
    with pytest.raises(ValueError, match=r"there is no .*nowhere/config\.json"):
        Pairs(path, str(tokenizer), reference=str(tmp_path / "nowhere")).precompute(numbers[:0])  # before any job
    with pytest.raises(ValueError, match="`reference_precision` 'half' is not one of"):
        Pairs(path, str(tokenizer), reference_precision="half")
    for name, model, message in (
        (
            "bert",
            BertLMHeadModel(BertConfig(vocab_size=200, initializer_range=0.5, **SMALL)),
            "attends to the tokens that it has to predict",
        ),
        ("small", LlamaForCausalLM(LlamaConfig(vocab_size=9, **SMALL)), "has 9 tokens, but the tokenizer"),
    ):
        model.save_pretrained(tmp_path / name)
        with pytest.raises(ValueError, match=message):
            Pairs(path, str(tokenizer), reference=str(tmp_path / name)).precompute(numbers)
    for loss in ("orpo", "reward"):
        with pytest.raises(SystemExit, match=f"`reference` has no effect on the loss {loss}"):
            Preferences(loss).build({}, None, facts_of(tokenizer) | {"reference": True})
    task, batch = Preferences(), batch_of(tokenizer, tmp_path)
    modules = task.build({"use": "transformers.LlamaForCausalLM", "arguments": {}}, weights, facts_of(tokenizer) | {"reference": True})
    assert set(modules) == {"model"}
    with pytest.raises(SystemExit, match="some sets have the argument `reference`"):
        task.rewards(modules, batch)


# --- pairs


def test_mismatched_answers_are_those_of_another_prompt(tokenizer, tmp_path):
    rows = [
        {"prompt": prompt, "chosen": chosen, "rejected": "bad"} for prompt, chosen in (("the", "good"), ("the", "great"), ("it", "warm"))
    ]
    made = Pairs(str(write(tmp_path / "pairs.jsonl", rows)), str(tokenizer), mismatched=True)
    texts = [[made.tokenizer.decode(ids[1:-1]) for ids, _ in item.values()] for item in map(made.__getitem__, range(3))]
    assert texts[1] == ["the great", "the bad", "the warm", "the bad"] and [row[2] for row in texts] == ["the warm", "the warm", "it great"]
    with pytest.raises(ValueError, match="no other pair has another prompt"):
        Pairs(str(write(tmp_path / "same.jsonl", rows[:2])), str(tokenizer), mismatched=True)


def test_tokens_are_those_of_prompt_and_answer(tokenizer, tmp_path):
    made = Pairs(str(write(tmp_path / "pairs.jsonl", pairs(1))), str(tokenizer))
    ids, prompt = made[0]["chosen"]
    assert made.tokenizer.decode(ids[:prompt]).startswith("[CLS] the film") and made.tokenizer.decode(ids[prompt:]) == "is good [SEP]"


def test_chats_are_written_by_the_template(tokenizer, tmp_path):
    user, answers = [{"role": "user", "content": "the film"}], [[{"role": "assistant", "content": text}] for text in ("is good", "is bad")]
    row = {"prompt": user, "chosen": answers[0], "rejected": answers[1]}
    made = Pairs(str(write(tmp_path / "chats.jsonl", [row])), str(tokenizer))
    assert made.texts == ["user: the film"]
    prompt, whole = made.written(made.pairs[0], answers[0])
    assert (prompt, whole) == ("user the film assistant ", "user the film assistant is good ")
    ids, length = made[0]["rejected"]
    assert made.tokenizer.decode(ids[length:]) == "is bad"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "the", "chosen": "good"}, "line 2: has no column `rejected`, but prompt, chosen"),
        ({"prompt": "the", "chosen": "", "rejected": "bad"}, "line 2: `chosen` is neither a text nor"),
        ({"prompt": "the", "chosen": [{"role": "assistant"}], "rejected": "bad"}, "line 2: `chosen` is neither a text nor"),
        ({"prompt": "the", "chosen": [{"role": "assistant", "content": "good"}], "rejected": "bad"}, "line 2: some of .* are texts and others messages"),
        ({"prompt": "the", "chosen": "good", "rejected": "\ud83d"}, "line 2: `rejected` has half of a surrogate pair"),
    ],
)  # fmt: skip
def test_bad_rows_are_named(tokenizer, tmp_path, row, message):
    with pytest.raises(ValueError, match=message):
        Pairs(str(write(tmp_path / "pairs.jsonl", [*pairs(1), row])), str(tokenizer))


def test_files_are_read_as_those_of_other_tasks(tokenizer, tmp_path, capsys):
    """Of other encodings and damaged ones a decoder or pyarrow complained, without the file."""
    text = "".join(json.dumps(row) + "\n" for row in pairs(3))
    (tmp_path / "pairs.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    assert Pairs(str(tmp_path / "pairs.jsonl.gz"), str(tokenizer)).pairs[2].chosen == pairs(3)[2]["chosen"]
    for name, content, message in (
        ("pairs.jsonl", text.encode("utf-16"), "pairs.jsonl: this is UTF-16, not utf-8"),
        ("pairs.parquet", b"PAR1", "pairs.parquet: not readable as Parquet"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BadData, match=message):
            Pairs(str(tmp_path / name), str(tokenizer))
    (tmp_path / "pairs.jsonl").write_bytes(text.encode() + json.dumps(pairs(1)[0]).encode().replace(b"the", b"th\xe9"))
    Pairs(str(tmp_path / "pairs.jsonl"), str(tokenizer)).check()
    assert "1 lines with bytes that do not fit `data.encoding`" in (said := capsys.readouterr().out) and "pairs.jsonl, line 4" in said


def test_equal_answers_are_left_out_and_long_ones_are_told(tokenizer, tmp_path, capsys):
    equal = {"prompt": "the", "chosen": "good", "rejected": "good"}
    pyarrow.parquet.write_table(pa.Table.from_pylist([*pairs(2), equal]), tmp_path / "pairs.parquet")
    made = Pairs(str(tmp_path / "pairs.parquet"), str(tokenizer), max_length=5)
    made.check()
    said = capsys.readouterr().out
    assert len(made) == 2 and "1 pairs have equal answers and are left out" in said and "pairs.parquet, row 3" in said
    assert "answers have 5 tokens with their prompt, or are cut off there" in said
    with pytest.raises(BadData, match="`max_length` 2 leaves no token of an answer"):
        Pairs(str(tmp_path / "pairs.parquet"), str(tokenizer), max_length=2).check()
