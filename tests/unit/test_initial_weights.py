"""Loading weights of an earlier run, all or a part, into a model with other names."""

import logging

import pytest
import torch
from safetensors.torch import save_file, save_model
from torch import nn

from snaketrain.config.schema import InitialWeights
from snaketrain.training.building import start_from


def encoder(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))


def labeller(seed: int, classes: int = 2) -> nn.Module:
    module = nn.Module()
    module.encoder, module.head = encoder(seed), nn.Linear(5, classes)
    return module


def chosen(**settings) -> InitialWeights:
    return InitialWeights.model_validate({"source": {"path": "x"}} | settings)


@pytest.fixture
def earlier(tmp_path):
    module = labeller(1)
    module.encoder[1].running_mean += 3
    save_model(module, str(tmp_path / "model.safetensors"))
    return module


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    return all(torch.equal(first, second) for (_, first), (_, second) in pairs)


def test_all_weights(earlier, tmp_path):
    later = labeller(2)
    start_from({"model": later}, tmp_path, chosen())
    assert same(later, earlier) and later.encoder[1].running_mean[0] == 3


@pytest.mark.parametrize("wrapped", [lambda state: state, lambda state: {"state_dict": state, "epoch": 3}])
def test_weights_of_a_pt_file(earlier, tmp_path, wrapped):
    (tmp_path / "pickled").mkdir()
    torch.save(wrapped(earlier.state_dict()), tmp_path / "pickled/weights.pt")
    later = labeller(2)
    start_from({"model": later}, tmp_path / "pickled", chosen())
    assert same(later, earlier)


class Intruder:
    def __reduce__(self):
        return (print, ("executed",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"weight": torch.ones(1), "more": Intruder()}, "is not loaded, since it is more than tensors"),
        ([torch.ones(1)], "has no state dict"),
    ],
)
def test_nothing_but_tensors_is_loaded_from_a_pt_file(tmp_path, capsys, content, message):
    torch.save(content, tmp_path / "weights.pt")
    with pytest.raises(SystemExit, match=message):
        start_from({"model": labeller(2)}, tmp_path, chosen())
    assert "executed" not in capsys.readouterr().out


def test_only_the_encoder(earlier, tmp_path):
    later, untouched = labeller(2, classes=7), labeller(2, classes=7)
    start_from({"model": later}, tmp_path, chosen(part="encoder."))
    assert same(later.encoder, earlier.encoder) and same(later.head, untouched.head)


def test_a_part_is_loaded_under_another_prefix_or_at_the_root(earlier, tmp_path):
    later = nn.ModuleDict({"bert": encoder(2), "other": encoder(2)})
    start_from({"model": later}, tmp_path, chosen(part="encoder.", into="bert."))
    assert same(later["bert"], earlier.encoder) and same(later["other"], encoder(2))
    bare = encoder(2)
    start_from({"model": bare}, tmp_path, chosen(part="encoder.", into=""))
    assert same(bare, earlier.encoder)


def test_strict_names_what_has_no_counterpart(earlier, tmp_path):
    later = labeller(2, classes=7)
    later.more = nn.Linear(1, 1)
    with pytest.raises(SystemExit) as error:
        start_from({"model": later}, tmp_path, chosen())
    reported = str(error.value)
    assert "2 not in the file: more.weight, more.bias" in reported
    assert "2 of another shape: head.bias [2] -> [7], head.weight [2, 5] -> [7, 5]" in reported
    assert "strict: false" in reported
    with pytest.raises(SystemExit, match="7 not in the model: other.0.bias"):
        start_from({"model": later}, tmp_path, chosen(part="encoder.", into="other."))


def test_not_strict_loads_what_fits_and_logs_the_rest(earlier, tmp_path, caplog):
    later = labeller(2, classes=7)
    with caplog.at_level(logging.INFO):
        start_from({"model": later}, tmp_path, chosen(strict=False))
    assert same(later.encoder, earlier.encoder)
    assert "7 tensors of the whole file; 2 of another shape: head.bias" in caplog.text
    with pytest.raises(SystemExit, match="do not match"):  # nothing matches
        start_from({"model": nn.Conv1d(1, 1, 1)}, tmp_path, chosen(strict=False))


def test_tied_weights_are_in_the_file_once(tmp_path):
    def tied(seed):
        torch.manual_seed(seed)
        module = nn.ModuleDict({"first": nn.Linear(3, 3, bias=False), "last": nn.Linear(3, 3, bias=False)})
        module["last"].weight = module["first"].weight
        return module

    save_file({"first.weight": tied(1)["first"].weight.detach()}, tmp_path / "model.safetensors")
    later = tied(2)
    start_from({"model": later}, tmp_path, chosen())
    assert same(later, tied(1))


def test_several_modules_have_a_file_each(tmp_path):
    for name in ("generator", "discriminator"):
        save_model(encoder(len(name)), str(tmp_path / f"{name}.safetensors"))
    later = {"generator": encoder(1), "discriminator": encoder(2)}
    start_from(later, tmp_path, chosen(part="generator."))
    assert same(later["generator"], encoder(9)) and same(later["discriminator"], encoder(2))
    start_from(later, tmp_path, chosen())
    assert same(later["discriminator"], encoder(13))
    alone = encoder(3)
    start_from({"model": alone}, tmp_path, chosen(part="discriminator.", into=""))
    assert same(alone, encoder(13))


def test_a_model_in_several_files(earlier, tmp_path):
    state = earlier.state_dict()
    save_file({name: tensor for name, tensor in state.items() if "head" in name}, tmp_path / "model-00001.safetensors")
    save_file({name: tensor for name, tensor in state.items() if "head" not in name}, tmp_path / "model-00002.safetensors")
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    later = labeller(2)
    start_from({"model": later}, tmp_path, chosen())
    assert same(later, earlier)


def test_a_folder_without_weights(tmp_path):
    with pytest.raises(SystemExit, match="model.initial_weights.source: no .safetensors or .pt file in"):
        start_from({"model": encoder(1)}, tmp_path, chosen())
