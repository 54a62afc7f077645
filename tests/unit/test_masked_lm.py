"""Which tokens are masked follows from seed, epoch and text; the loss is that of transformers on the same masks."""

import json

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from snaketrain.models.token_losses import NO_TARGET
from snaketrain.tasks.masked_lm import OF_EVALUATIONS, MaskedLm

PAD, START, END, MASK, FIRST, VOCABULARY = 0, 1, 2, 3, 4, 60
BERT = {
    "use": "transformers.BertForMaskedLM",
    "arguments": {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "max_position_embeddings": 200,
    },
}


def write_tokenizer(folder, mask="[MASK]"):
    words = ["[PAD]", "[CLS]", "[SEP]", mask, *(f"w{number}" for number in range(FIRST, VOCABULARY))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="w4"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", START), ("[SEP]", END)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return {"tokenizer_folder": str(folder), "vocab_size": VOCABULARY, "pad_token_id": PAD}


@pytest.fixture
def facts(tmp_path):
    return write_tokenizer(tmp_path)


def made(facts, **arguments):
    task = MaskedLm(**arguments)
    torch.manual_seed(0)
    return task, {name: module.eval() for name, module in task.build(BERT, None, facts).items()}


def text(length, seed):
    return [START, *np.random.default_rng(seed).integers(FIRST, VOCABULARY, length).tolist(), END]


def batch_of(*texts):
    width = max(map(len, texts))
    ids = torch.tensor([row + [PAD] * (width - len(row)) for row in texts])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in texts])
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.full((len(texts),), -100)}


def test_masks_follow_from_seed_epoch_and_text_alone(facts):
    task, _ = made(facts)
    short, long = text(20, 0), text(90, 1)
    alone, beside = task.masked(batch_of(short), 2), task.masked(batch_of(long, short), 2)
    assert all(torch.equal(one[0], two[1][:22]) for one, two in zip(alone, beside, strict=True))
    assert (beside[1][1][22:] == NO_TARGET).all() and (beside[0][1][22:] == PAD).all()
    others = [task.masked(batch_of(long), 3), made(facts, seed=1)[0].masked(batch_of(long), 2), task.masked(batch_of(long), OF_EVALUATIONS)]
    assert all((other[1] != beside[1][:1]).any() for other in others)


def test_the_share_is_exact_and_special_tokens_are_never_predicted(facts):
    task, _ = made(facts, mask_probability=0.2)
    batch = batch_of(text(1, 0), text(10, 1), text(40, 2), [START, END])
    seen, targets = task.masked(batch, 0)
    assert (targets != NO_TARGET).sum(1).tolist() == [1, 2, 8, 0] and task.count(batch) == 11
    chosen = targets != NO_TARGET
    assert (targets[chosen] == batch["input_ids"][chosen]).all() and (targets[chosen] >= FIRST).all()
    assert (seen[~chosen] == batch["input_ids"][~chosen]).all()


def test_what_the_model_sees_instead(facts):
    task, _ = made(facts)
    batch = batch_of(*(text(100, seed) for seed in range(300)))
    seen, targets = task.masked(batch, 0)
    chosen = targets != NO_TARGET
    masked, same = (seen[chosen] == MASK).float().mean(), (seen[chosen] == targets[chosen]).float().mean()
    assert abs(masked - 0.8) < 0.02 and abs(same - 0.1 - 0.1 / (VOCABULARY - FIRST)) < 0.02 and (seen[chosen] >= MASK).all()


def test_every_place_is_predicted_as_often_as_others_and_replaced_by_all_tokens(facts):
    task, _ = made(facts)
    batch = batch_of(*(text(20, seed) for seed in range(200)))
    times, others = torch.zeros(22), torch.zeros(VOCABULARY)
    for epoch in range(50):
        seen, targets = task.masked(batch, epoch)
        times += (targets != NO_TARGET).sum(0)
        others += torch.bincount(seen[(targets != NO_TARGET) & (seen != MASK) & (seen != targets)], minlength=VOCABULARY)
    expected = 200 * 50 * 3 / 20  # a binomial number
    assert times[[0, -1]].tolist() == [0, 0] and (abs(times[1:-1] - expected) < 5 * (expected * 0.85) ** 0.5).all()
    expected = others.sum() / (VOCABULARY - FIRST)
    assert (abs(others[FIRST:] - expected) < 5 * expected**0.5).all() and not others[:FIRST].any()


def test_the_loss_is_that_of_transformers(facts):
    task, modules = made(facts)
    modules["model"].requires_grad_(False)
    batch = batch_of(text(30, 0), text(50, 1))
    task.on_epoch_start(4, modules)
    seen, targets = task.masked(batch, 4)
    expected = modules["model"](input_ids=seen, attention_mask=batch["attention_mask"], labels=targets).loss
    assert torch.allclose(task.training_step(modules, batch) / task.count(batch), expected, rtol=1e-6)
    sums = task.evaluation_step(task.outputs(modules, batch), batch)
    seen, targets = task.masked(batch, OF_EVALUATIONS)
    expected = modules["model"](input_ids=seen, attention_mask=batch["attention_mask"], labels=targets).loss
    assert task.measure(sums)["loss"] == pytest.approx(float(expected), rel=1e-6)
    assert list(task.predict(task.outputs(modules, batch), batch)) == ["loss", "tokens"]


def test_what_cannot_be_masked_is_refused(facts, tmp_path):
    for share in (0, 1, -0.1):
        with pytest.raises(SystemExit, match="mask_probability: is"):
            MaskedLm(mask_probability=share)
    facts = write_tokenizer(tmp_path, mask="<blank>")
    with pytest.raises(SystemExit, match=r"has none of \[MASK\], <mask>, with which tokens are masked. Name its token"):
        made(facts)
    with pytest.raises(SystemExit, match="has no token 'w99'"):
        made(facts, mask_token="w99")
    task, _ = made(facts, mask_token="<blank>")
    assert task.mask == MASK
    batch = batch_of(text(5, 0))
    for field, message in (("token_type_ids", "names two columns"), ("position_ids", "train.packing: is for causal_lm")):
        with pytest.raises(SystemExit, match=message):
            task.count(batch | {field: batch["input_ids"]})
    with pytest.raises(SystemExit, match="has 200 positions, but 202 are needed"):
        task.count(batch_of(text(200, 0)))


def test_special_tokens_of_a_tokenizer_that_marks_none(tmp_path):
    facts = write_tokenizer(tmp_path)
    assert not json.loads((tmp_path / "tokenizer.json").read_text())["added_tokens"]
    assert made(facts)[0].ordinary.tolist() == list(range(FIRST, VOCABULARY))
