"""Training and evaluation of language models, against texts run alone and a plain cross entropy."""

import math
import sys
import weakref

import numpy as np
import pyarrow
import pytest
import torch
from torch.nn.functional import cross_entropy

from snaketrain.config.schema import Metric
from snaketrain.data.loading.batches import MicroBatch
from snaketrain.data.loading.examples import Blocks, Packed, TextExamples
from snaketrain.evaluation.predicting import predict
from snaketrain.models.token_losses import token_losses
from snaketrain.strategies.ddp import Single
from snaketrain.tasks.causal_lm import CausalLm
from snaketrain.training.building import add_metrics
from snaketrain.training.evaluation import evaluate
from snaketrain.training.state import TrainState
from snaketrain.training.step import take_step

VOCABULARY = 40
FACTS = {"vocab_size": VOCABULARY, "end_token_id": 3}
LLAMA = {
    "use": "transformers.LlamaForCausalLM",
    "arguments": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
    },
}


@pytest.fixture
def task():
    return CausalLm()


@pytest.fixture
def modules(task):
    torch.manual_seed(0)
    return {"model": task.build(LLAMA, None, FACTS)["model"].eval()}


@pytest.fixture
def texts():
    torch.manual_seed(1)
    return [torch.randint(0, VOCABULARY, (length,)).tolist() for length in (5, 1, 17, 9, 2, 30, 8)]


@pytest.fixture
def examples(tmp_path, texts):
    def write(types: list[list[int]] | None = None) -> TextExamples:
        columns = {"input_ids": pyarrow.array(texts, pyarrow.list_(pyarrow.int32())), "label": pyarrow.array([-100] * len(texts))}
        columns |= {"token_type_ids": pyarrow.array(types, pyarrow.list_(pyarrow.int8()))} if types else {}
        table = pyarrow.table(columns)
        with pyarrow.ipc.new_file(str(tmp_path / "texts.arrow"), table.schema) as file:
            file.write_table(table, max_chunksize=3)
        return TextExamples(tmp_path / "texts.arrow", pad_token_id=0)

    return write


def alone(model, text: list[int]) -> torch.Tensor:
    """The loss of each token but the first, of a text that is run by itself."""
    tokens = torch.tensor(text)
    return cross_entropy(model(input_ids=tokens[None]).logits[0, :-1], tokens[1:], reduction="none")


def state(task, modules, rate: float = 0.1) -> TrainState:
    optimizers = {"model": torch.optim.SGD(modules["model"].parameters(), lr=rate)}
    return TrainState(task, Single(device="cpu", precision="fp32"), modules, optimizers, None)


def test_packed_texts_do_not_attend_to_each_other(task, modules, texts, examples):
    batch = Packed(examples()).batch(range(len(texts)))
    assert len(batch["input_ids"]) < len(texts)
    logits = modules["model"](batch["input_ids"], position_ids=batch["position_ids"], use_cache=False).logits
    rows = {tuple(text): modules["model"](torch.tensor([text])).logits[0] for text in texts}
    starts = [(row, place) for row, place in (batch["position_ids"] == 0).nonzero().tolist() if batch["input_ids"][row, place:].any()]
    found = 0
    for row, place in starts:
        text = next((t for t in texts if batch["input_ids"][row, place : place + len(t)].tolist() == t), None)
        if text:
            found += 1
            torch.testing.assert_close(logits[row, place : place + len(text)], rows[tuple(text)], rtol=1e-5, atol=1e-6)
    assert found >= len(texts)


@pytest.mark.parametrize("layout", ["padded", "packed", "one row"])
def test_loss_and_count_equal_those_of_single_texts(task, modules, texts, examples, layout):
    task.one_row = layout == "one row"  # as FlashAttention needs it
    data = examples() if layout == "padded" else Packed(examples())
    batch = data.batch(range(len(texts)))
    expected = torch.cat([alone(modules["model"], text) for text in texts if len(text) > 1])
    assert task.count(batch) == len(expected) == sum(map(len, texts)) - len(texts)
    assert task.training_step(modules, batch).item() == pytest.approx(expected.sum().item(), rel=1e-6)
    with torch.no_grad():
        found = task.measure(task.evaluation_step(task.outputs(modules, batch), batch))
    assert found["loss"] == pytest.approx(expected.mean().item(), rel=1e-6)
    assert found["perplexity"] == pytest.approx(math.exp(expected.mean().item()), rel=1e-5)
    assert list(found) == list(task.metrics)


def test_accuracy_is_the_share_of_tokens_predicted_as_most_likely(task, modules, texts, examples):
    right = [(modules["model"](torch.tensor([t])).logits[0, :-1].argmax(-1) == torch.tensor(t[1:])) for t in texts if len(t) > 1]
    found = evaluate(state(task, modules), examples(), 3)
    assert found["accuracy"] == pytest.approx(torch.cat(right).float().mean().item())


def test_metrics_of_the_configuration_have_a_row_for_each_predicted_token(task, modules, examples):
    top = {
        "use": "torchmetrics.classification.MulticlassAccuracy",
        "arguments": {"num_classes": VOCABULARY, "average": "micro", "top_k": 5},
    }
    add_metrics(task, {"top_5": Metric(**top)}, FACTS, "causal_lm", "train.metrics")
    batch = examples().batch(range(7))
    logits, targets = task.predictions(modules, batch)
    learnt = targets >= 0
    right = (logits[learnt].topk(5).indices == targets[learnt][:, None]).any(1)
    assert evaluate(state(task, modules), examples(), 3)["top_5"] == pytest.approx(right.float().mean().item(), abs=1e-6)
    add_metrics(task, {"most": Metric(use="torchmetrics.MaxMetric")}, FACTS, "causal_lm", "evaluate.metrics")
    with pytest.raises(SystemExit, match=r"metrics.most: needs a row for each example, but this task gives \d+ for 2 examples"):
        evaluate(state(task, modules), examples(), 3)


def test_figures_and_rows_come_from_one_pass_of_the_model(task, modules, examples):
    passes = []
    modules["model"].register_forward_hook(lambda *_: passes.append(1))
    expected = evaluate(state(task, modules), examples(), 3)
    once = len(passes)
    metrics, rows = predict(state(task, modules), examples(), 3, None, "test", measured=True)
    assert (metrics, len(passes)) == (expected, 2 * once)
    assert rows["ids"].tolist() == list(range(len(examples())))
    summed = np.nansum(rows["loss"] * rows["tokens"])  # where there is one token only, nothing is predicted
    assert summed / rows["tokens"].sum() == pytest.approx(expected["loss"], rel=1e-5)
    assert predict(state(task, modules), examples(), 3, None, "test", measured=False)[0] == {}


@pytest.mark.parametrize("look", [evaluate, lambda *given: predict(*given, None, "test", measured=True)])
def test_the_outputs_of_one_batch_at_a_time_are_kept(task, modules, examples, look):
    made, outputs = [], task.outputs

    def watched(*given):
        assert all(logits() is None for logits in made)
        found = outputs(*given)
        made.append(weakref.ref(found[0]))
        return found

    task.outputs = watched
    look(state(task, modules), examples(), 2)
    assert len(made) > 2


def test_a_process_without_examples_of_its_own_predicts_as_well(task, modules, examples):
    """Peers may wait for it if the model is sharded."""
    asked = []
    task.predict = lambda outputs, batch: asked.append(batch) or {}
    who = state(task, modules)
    who.strategy.__class__ = type("Last", (Single,), {"rank": 3, "world_size": 4})
    predict(who, examples(), 1, None, "test", measured=True)
    assert len(asked) == len(examples())


def test_an_error_of_an_evaluation_comes_after_its_progress_bar(task, modules, examples, capsys):
    """The console says why a job failed by the last line of its log, which was the bar's."""
    task.outputs = lambda *_: sys.exit("the reason")
    with pytest.raises(SystemExit) as error:  # which keeps what failed, as the script does that reports it
        predict(state(task, modules), examples(), 3, None, "test", measured=True)
    said = capsys.readouterr().err
    assert str(error.value) == "the reason" and said.startswith("\rtest:") and said.endswith("\n")


def test_layouts_evaluate_and_train_alike(task, modules, texts, examples):
    """Padded or packed, in one batch or in microbatches: the same loss, and the same weights after a step."""
    before = {name: value.clone() for name, value in modules["model"].state_dict().items()}
    found = []
    for data in (examples(), Packed(examples())):
        for cut in ([range(7)], [range(3), range(3, 7)]):
            modules["model"].load_state_dict(before)
            who = state(task, modules)
            losses = [evaluate(who, data, 2)["loss"]]
            batches = [(MicroBatch(tuple(ids)), data.batch(ids)) for ids in cut]
            take_step(who, batches, sum(task.count(batch) for _, batch in batches), 0.1)
            found.append([*losses, evaluate(who, data, 3)["loss"]])
    assert found[0][1] < found[0][0]
    assert all(each == pytest.approx(found[0], rel=1e-5) for each in found)


def test_blocks_predict_every_token_from_the_tokens_before_it(task, modules, texts, examples):
    running = [token for text in texts for token in text]
    expected = torch.cat([alone(modules["model"], running[start : start + 11]) for start in range(0, len(running) - 1, 10)])
    found = evaluate(state(task, modules), Blocks(examples(), 10), 3)
    assert len(expected) == len(running) - 1
    assert found["loss"] == pytest.approx(expected.mean().item(), rel=1e-5)


@pytest.mark.parametrize("layout", [lambda data: data, Packed])
def test_only_answers_are_trained_on_unless_learn_prompts_is_set(task, modules, texts, examples, layout):
    types = [[0] * (len(text) // 2) + [1] * (len(text) - len(text) // 2) for text in texts]
    batch = layout(examples(types)).batch(range(len(texts)))
    losses = [alone(modules["model"], text)[max(0, len(text) // 2 - 1) :] for text in texts if len(text) > 1]
    assert task.count(batch) == sum(map(len, losses)) < sum(map(len, texts)) - len(texts)
    assert task.training_step(modules, batch).item() == pytest.approx(torch.cat(losses).sum().item(), rel=1e-6)
    every = CausalLm(learn_prompts=True)
    every.build(LLAMA, None, FACTS)
    assert every.count(batch) == sum(map(len, texts)) - len(texts)


@pytest.mark.parametrize("chunk", [2**24, 4 * VOCABULARY, 1])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_losses_in_chunks_equal_those_of_pytorch(monkeypatch, chunk, kind):
    torch.manual_seed(2)
    monkeypatch.setattr("snaketrain.models.token_losses.CHUNK", chunk)
    logits, targets = torch.randn(3, 7, VOCABULARY).to(kind).requires_grad_(), torch.randint(0, VOCABULARY, (3, 7))
    targets[0, 3:] = -100
    weights = torch.rand(3, 7)
    losses = token_losses(logits, targets)
    expected = cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none").view(3, 7)
    gradients = [torch.autograd.grad((each * weights).sum(), logits)[0] for each in (losses, expected)]
    assert losses.dtype == torch.float32 and gradients[0].dtype == kind
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(*gradients)
    assert losses[0, 3:].eq(0).all() and gradients[0][0, 3:].eq(0).all()


def test_predictions_have_a_row_for_each_text(task, modules, texts, examples):
    def rows_of(batch):
        return task.predict(task.outputs(modules, batch), batch)

    rows = rows_of(examples().batch([0, 2]))
    assert rows["tokens"].tolist() == [4, 16]
    assert rows["loss"].tolist() == pytest.approx([alone(modules["model"], texts[i]).mean().item() for i in (0, 2)], rel=1e-5)
    assert rows_of(Packed(examples()).batch([0, 2])) == rows_of(Blocks(examples(), 8).batch([0])) == {}


def test_a_dataset_class_needs_only_tokens():
    task = CausalLm()
    modules = task.build(LLAMA | {"arguments": LLAMA["arguments"] | {"vocab_size": VOCABULARY}}, None, {"label_names": []})
    tokens = torch.randint(0, VOCABULARY, (3, 6))
    expected = torch.cat([alone(modules["model"], text) for text in tokens.tolist()]).sum().item()
    assert task.training_step(modules, {"input_ids": tokens}).item() == pytest.approx(expected, rel=1e-6)


def test_a_text_of_one_token_has_nothing_to_learn(task, modules, examples):
    for data in (examples(), Packed(examples())):
        batch = data.batch([1])
        assert task.count(batch) == 0
        loss = task.training_step(modules, batch)
        loss.backward()
        assert loss.item() == 0


SMOOTHED = {"use": "torch.nn.CrossEntropyLoss", "arguments": {"label_smoothing": 0.1}}


def test_a_named_loss_is_the_sum_over_predicted_tokens(task, modules, texts, examples):
    """In all layouts, in parts of a batch, and of a text that has nothing to learn. Evaluations report the plain one."""
    named = CausalLm(loss=SMOOTHED)
    named.build(LLAMA, None, FACTS)
    expected = sum(
        cross_entropy(modules["model"](torch.tensor([text])).logits[0, :-1], torch.tensor(text[1:]), label_smoothing=0.1, reduction="sum")
        for text in texts
        if len(text) > 1
    )
    everything = range(len(texts))
    for data, parts in ((examples(), [everything]), (Packed(examples()), [everything]), (examples(), [[0, 2, 3], [1], [4, 5, 6]])):
        losses = [named.training_step(modules, data.batch(part)) for part in parts]
        assert sum(losses).item() == pytest.approx(expected.item(), rel=1e-5)
        sum(losses).backward()
    batch = examples().batch(everything)
    figures = [each.evaluation_step(each.outputs(modules, batch), batch)["loss"] for each in (named, task)]
    assert figures[0] == figures[1]


@pytest.mark.parametrize(("given", "place"), [({"arguments": {}}, "use"), ({"use": "torch.nn.CrossEntropyLoss", "weight": 2}, "weight")])
def test_what_names_no_loss_is_refused(given, place):
    with pytest.raises(SystemExit, match=rf"^train\.task\.arguments\.loss\.{place}: "):
        CausalLm(loss=given)
