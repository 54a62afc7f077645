"""A folder in which the whole workflow runs within a minute: a tiny random BERT learns which words are kind.

The Snakefile reads `config/config.yaml` of the working directory, so the folder has one.
"""

import csv
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import limits
import yaml

from pipeline.warm_python import warm_python
from snaketrain.orchestration.effects import SWITCH
from snaketrain.runtime.manifests import read_if_intact, stamp, write_checked

REPOSITORY = Path(__file__).resolve().parents[2]
SNAKEMAKE = Path(__file__).with_name("forked_snakemake.py")
KIND = ["good", "great", "warm", "funny", "brilliant"]
UNKIND = ["bad", "boring", "cold", "dull", "awful"]
NEUTRAL = ["the", "a", "film", "story", "plot", "is", "was", "very", "it", "and", "this", "actor"]
WITHOUT_REGISTRY = {"register_models": False} if (REPOSITORY / "workflow/scripts/snaketrain/extras/registry").is_dir() else {}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def make_workspace(folder: Path, **sections: Any) -> Path:
    """Data, a tokenizer and a configuration of two runs, `small` and `other`; `sections` replace those of it."""
    folder = Path(folder)
    (folder / "config").mkdir(parents=True, exist_ok=True)
    write_sentences(folder / "sentences.csv")
    write_tokenizer(folder / "tokenizer")
    write_configuration(folder, configuration() | sections)
    return folder


def configuration() -> dict[str, Any]:
    """A fresh one at each call, for tests that change it."""
    return {
        "data": {
            "name": "words",
            "train": {"path": "sentences.csv"},
            "labels": {0: "unkind", 1: "kind"},
            "dev_fraction": 0.15,
            "test_fraction": 0.15,
            "max_length": 16,
            "tokenizer": {"path": "tokenizer"},
        },
        "model": {
            "use": "transformers.BertForSequenceClassification",
            "arguments": {
                "hidden_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "intermediate_size": 64,
                "max_position_embeddings": 16,
            },
        },
        "train": {"batch_size": 16, "epochs": 2, "learning_rate": 1e-3, "evaluations_per_epoch": 2},
        "compute": {"threads": 1, "device": "cpu"},
        "tracking": {"experiment": "words", "log_every_steps": 2} | WITHOUT_REGISTRY,
        "runs": {"small": {"train.learning_rate": 1e-3}, "other": {"train.seed": 1}},
    }


def write_part(folder: Path, number: int, rows: list[tuple[str, object]]) -> None:
    """One of several files of training data."""
    (folder / "raw").mkdir(exist_ok=True)
    with open(folder / f"raw/part-{number}.csv", "w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])


def write_configuration(folder: Path, config: dict[str, Any]) -> None:
    (Path(folder) / "config/config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))


def read_configuration(folder: Path) -> dict[str, Any]:
    return yaml.safe_load((Path(folder) / "config/config.yaml").read_text())


def snakemake(
    folder: Path, *arguments: str, snakefile: Path = REPOSITORY / "Snakefile", check: bool = True, tried: bool = False
) -> subprocess.CompletedProcess:
    """The workflow in the folder, on two cores unless told otherwise; stdout and stderr are text. `tried`: what the runs name is tried before any
    job, as for users, which takes seconds."""
    cores = () if any(a.startswith(("--cores", "-c")) for a in arguments) else ("--cores", "2")
    command = [warm_python(), str(SNAKEMAKE), "--snakefile", str(snakefile), "--directory", str(folder)]
    if known_code and not (folder / CODE).exists():
        keep_code(folder, known_code)
    environment = {name: value for name, value in os.environ.items() if not (tried and name == SWITCH)}
    words, timeout = [*command, *cores, *arguments], limits.seconds(600)
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, timeout=timeout, env=environment)
    if check and done.returncode:
        raise AssertionError(f"snakemake {' '.join(arguments)} failed ({done.returncode}):\n{done.stdout[-2000:]}\n{done.stderr[-8000:]}")
    if not known_code:
        known_code.update(code_of(folder))
    return done


# --- what a workflow has found out about the code, which takes it as long as a small training, and which a new folder need not repeat

CODE = Path(".snakemake/snaketrain-code.json")
known_code: dict[str, Any] = {}  # of this repository


def code_of(folder: Path) -> dict[str, Any]:
    """Nothing, where no workflow has come so far."""
    kept = read_if_intact(folder / CODE, "") or {"version": "", "found": {}}
    found = {key: entry for key, entry in kept["found"].items() if key.startswith(str(REPOSITORY))}
    return {"version": kept["version"], "found": found} if found else {}


def keep_code(folder: Path, known: dict[str, Any]) -> None:
    (folder / CODE).parent.mkdir(exist_ok=True)
    write_checked(folder / CODE, known, indent=None)


def keep_code_of_a_copy(folder: Path, copy: Path) -> None:
    """In a folder that knows the code of this repository, of which `copy` has the files; in another, nothing."""
    if not (known := code_of(folder)):
        return
    found = {key.replace(str(REPOSITORY), str(copy), 1): result for key, (_, result) in known["found"].items()}
    files = {key: Path(key.partition(" without ")[0]) for key in found}
    copied = {key: [stamp(file.stat()), found[key]] for key, file in files.items() if file.exists()}
    keep_code(folder, known | {"found": known["found"] | copied})


def prepared(folder: Path) -> Path:
    """The manifest of prepared data in a workspace of its own."""
    make_workspace(folder)
    snakemake(folder, "--until", "prepare_data")
    return next((folder / "results/data").glob("*/manifest.json"))


def sentences(count: int) -> list[tuple[str, int]]:
    """One kind or unkind word among neutral ones decides the label; no two sentences are equal, and the labels alternate."""
    draw = random.Random(0)
    rows: dict[str, int] = {}
    while len(rows) < count:
        label = len(rows) % 2
        words = [draw.choice(NEUTRAL) for _ in range(draw.randint(3, 9))]
        words.insert(draw.randint(0, len(words)), draw.choice(KIND if label else UNKIND))
        rows.setdefault(" ".join(words), label)
    return list(rows.items())


def write_sentences(path: Path, count: int = 240) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *sentences(count)])


def write_tokenizer(folder: Path) -> None:
    """A token for each of the words above; the ids of the special ones are their places in SPECIAL."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = SPECIAL + NEUTRAL + KIND + UNKIND
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
