"""Every file of config/examples runs as it is but for its size, and what it trains has learnt something.

An example that is added needs a case here: what writes its files, what makes it small, and what it must reach.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from pipeline.workspace import REPOSITORY, SPECIAL, sentences, snakemake, write_tokenizer

EXAMPLES = REPOSITORY / "config/examples"


class Case(NamedTuple):
    """`write` puts files where the example looks for them; `smaller` replaces settings; `reaches` is asked of the test results."""

    write: Callable[[Path], None]
    smaller: dict[str, Any]
    reaches: dict[str, float]


def write_sst2(folder: Path) -> None:
    """`sentence<TAB>label` without a header line, in files without an ending; half of each is kind."""
    rows = iter(sentences(800))
    (folder / "data/sst2").mkdir(parents=True)
    for split, count in (("train", 600), ("dev", 80), ("test", 120)):
        lines = [f"{text}\t{label}\n" for text, label in (next(rows) for _ in range(count))]
        (folder / f"data/sst2/sentiment-{split}").write_text("".join(lines))
    write_tokenizer(folder / "models/bart-base")


PAD, _, START, END = range(len(SPECIAL))
SMALL_BART = {"d_model": 32, "max_position_embeddings": 256, "bos_token_id": START, "eos_token_id": END, "pad_token_id": PAD}
SMALL_BART |= {"decoder_start_token_id": END, "forced_eos_token_id": END}
SMALL_BART |= {
    f"{part}_{what}": n for part in ("encoder", "decoder") for what, n in {"layers": 1, "attention_heads": 2, "ffn_dim": 64}.items()
}

CASES = {
    "sst2_bart": Case(
        write_sst2,
        {"model": {"source": None, "arguments": SMALL_BART}, "train": {"batch_size": 16, "learning_rate": 2e-3, "epochs": 2}},
        {"accuracy": 0.85},  # the larger class makes 0.5
    ),
}


def merged(old: Any, new: Any) -> Any:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    return old | {key: merged(old.get(key), value) for key, value in new.items()}


def test_every_example_has_a_case():
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_the_example_trains_a_model_that_has_learnt(name, tmp_path):
    case = CASES[name]
    case.write(tmp_path)
    config = merged(yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text()), case.smaller)
    (tmp_path / "example.yaml").write_text(yaml.safe_dump(config))
    snakemake(tmp_path, "--configfile", str(tmp_path / "example.yaml"))
    assert {path.name for path in (tmp_path / "results/runs").iterdir()} == set(config["runs"])
    for run in config["runs"]:
        results = json.loads((tmp_path / f"results/runs/{run}/evaluation/test_results.json").read_text())
        assert {metric: results[metric] for metric in case.reaches if results[metric] < case.reaches[metric]} == {}
