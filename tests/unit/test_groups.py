"""Groups with an optimizer and a schedule of their own, against a plain loop with one optimizer for each; and resumed."""

import pytest
import torch
from points import EXAMPLES, TRAIN, Points, bits_of, make, module_of
from torch import nn
from torch.nn.functional import cross_entropy

from snaketrain.config.schema import Train
from snaketrain.config.schema.train import Group
from snaketrain.strategies.ddp import Zero1
from snaketrain.training.optimizers import check_groups, optimizer_of, parameter_groups

MUON = {"use": "torch.optim.Muon", "arguments": {"momentum": 0.9}}
MATRICES = {"match": "*", "dimensions": 2, "optimizer": MUON, "schedule": {"use": "torch.optim.lr_scheduler.StepLR", "arguments": {"step_size": 3}}}  # fmt: skip
SCALED = {"match": "2.bias", "rate_scale": 3.0}


def plain_loop(training) -> nn.Module:
    """The same steps by hand: Muon for matrices, at rates of StepLR; AdamW for biases, at rates that decay linearly."""
    torch.manual_seed(Train().seed)
    model = nn.Sequential(nn.Linear(2, 16), nn.Dropout(0.0), nn.Linear(16, 3))
    matrices = [model[0].weight, model[2].weight]
    biases = [{"params": [model[0].bias], "weight_decay": 0.0}, {"params": [model[2].bias], "weight_decay": 0.0}]
    muon, adam = torch.optim.Muon(matrices, momentum=0.9, weight_decay=0.3), torch.optim.AdamW(biases, eps=1e-8)
    data, plan = Points(EXAMPLES, seed=0), training.plan
    for _, steps in plan.batches.after(0, plan.steps):
        for step, ids in steps:
            batch, done = data.batch(ids), step - 1
            rising, after = min(1.0, done / 4), max(0, done - 4)
            muon.param_groups[0]["lr"] = 0.02 * rising * 0.1 ** (after // 3)
            adam.param_groups[0]["lr"] = 0.02 * rising * (1 - after / (plan.steps - 4))
            adam.param_groups[1]["lr"] = 3 * adam.param_groups[0]["lr"]
            cross_entropy(model(batch["places"]), batch["classes"]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), TRAIN["clip_norm"])
            muon.step()
            adam.step()
            model.zero_grad()
    return model


def test_muon_for_matrices_and_adamw_for_the_rest_equal_a_plain_loop(tmp_path):
    training = make(tmp_path, groups=[SCALED, MATRICES])
    training.fit()
    expected = plain_loop(training)
    for name, parameter in module_of(training).named_parameters():
        assert torch.allclose(parameter, expected.get_parameter(name), atol=1e-5), name


@pytest.mark.parametrize("stops_at", [1, 7])
def test_a_resumed_training_is_equal_bit_for_bit(tmp_path, stops_at):
    settings = {"groups": [SCALED, MATRICES], "dropout": 0.2}
    whole = make(tmp_path / "whole", **settings)
    whole.fit()
    make(tmp_path / "parts", stops_at=stops_at, **settings).fit()
    resumed = make(tmp_path / "parts", **settings)
    resumed.fit()
    assert resumed.journal.of("train")[0]["step"] > 1, "it did not begin again"
    assert bits_of(resumed) == bits_of(whole)


def groups_of(module: nn.Module, *groups: dict) -> list[dict]:
    return parameter_groups("model", module, 0.1, [Group(**group) for group in groups])


def test_all_parameters_decay_where_that_is_asked_for():
    module = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    decays = {
        name: group["weight_decay"] for group in parameter_groups("model", module, 0.1, [], decay_all=True) for name in group["params"]
    }
    assert decays == dict.fromkeys(("0.weight", "0.bias", "1.weight", "1.bias"), 0.1)
    check_groups({"model": module}, [Group(match="1.*", weight_decay=0.2)], decay_all=True)
    with pytest.raises(ValueError, match="`decay` is all, but `weight_decay` is 0"):
        Train(decay="all", weight_decay=0.0)


def test_the_first_group_that_matches_applies():
    module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    found = groups_of(module, {"match": "1.*", "dimensions": 2, "optimizer": "torch.optim.SGD"}, {"match": "1.*", "rate_scale": 2})
    assert [(group["params"], group.get("setting"), group["rate_scale"]) for group in found] == [
        (["0.weight"], None, 1.0),
        (["0.bias"], None, 1.0),
        (["1.weight"], 0, 1.0),
        (["1.bias"], None, 2.0),
    ]


def test_modules_of_a_task_can_have_an_optimizer_each():
    train = Train(groups=[{"match": "critic.*", "optimizer": {"use": "torch.optim.SGD", "arguments": {"momentum": 0.5}}}])
    found = {}
    for name in ("maker", "critic"):
        module = nn.Linear(2, 2)
        found[name] = optimizer_of(train, parameter_groups(name, module, 0.1, train.groups), dict(module.named_parameters()))
    assert {name: type(optimizer) for name, optimizer in found.items()} == {"maker": torch.optim.AdamW, "critic": torch.optim.SGD}
    assert found["critic"].param_groups[0]["momentum"] == 0.5


@pytest.mark.parametrize(
    ("train", "sharded", "words"),
    [
        ({"groups": [MATRICES]}, Zero1, "train.groups: a strategy that shares one optimizer among the processes cannot use several"),
        (
            {"groups": [MATRICES | {"dimensions": None}]},
            None,
            "train.groups.0.optimizer: torch.optim.Muon: Muon only supports 2D parameters",
        ),
        ({"optimizer": "torch.optim.LBFGS"}, None, "train.optimizer.use: torch.optim.LBFGS computes the loss several times in a step"),
    ],
)
def test_what_an_optimizer_cannot_do_is_refused(train, sharded, words):
    module, settings = nn.Linear(2, 2), Train(**train)
    with pytest.raises(SystemExit, match=words):
        optimizer_of(settings, parameter_groups("model", module, 0.1, settings.groups), dict(module.named_parameters()), sharded)


def test_a_group_of_matrices_that_matches_none_is_an_error():
    with pytest.raises(SystemExit, match=r"train.groups: no parameter of 2 dimensions matches `\*.bias`"):
        check_groups({"model": nn.Linear(2, 2)}, [Group(match="*.bias", dimensions=2)])
    with pytest.raises(SystemExit, match=r"train.groups: all parameters that match `\*.bias` have one dimension.* Remove its weight_decay"):
        check_groups({"model": nn.Linear(2, 2)}, [Group(match="*.bias", weight_decay=0.1)])
    check_groups({"model": nn.Linear(2, 2)}, [Group(match="*", weight_decay=0.1), Group(match="*.bias", weight_decay=0.0)])


def test_groups_without_the_new_settings_are_not_stale():
    assert Group(match="a").model_dump() == {"match": "a", "rate_scale": 1.0, "weight_decay": None}
