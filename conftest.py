"""What several tests need: a tokenizer small enough to check by eye."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

# Snakemake and the scripts that tests start use the package of this checkout, whatever else is installed
os.environ["PYTHONPATH"] = str(Path(__file__).parent / "workflow/scripts")
# torch's threads, here and in processes of the tests: as many tests run at once as there are cores, and spinning threads would slow each other down
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault(
    "SNAKETRAIN_CHECKS", "names"
)  # trying takes seconds for each configuration; tests/unit/test_checks_by_effect.py tests it

os.environ.setdefault("SNAKETRAIN_WARM_START", "0")  # stages of tests are forked already, from the server of pipeline/warm_python.py

# Files that take minutes. They are begun first, so that none is left for the end, when the other processes have nothing to do.
LONGEST = (
    "slurm/test_lost_nodes.py", "slurm/test_interrupted.py", "slurm/test_surroundings.py", "slurm/test_pipeline.py", "slurm/test_faults.py",
    "slurm/test_nodes.py", "slurm/test_outages.py", "slurm/test_search.py",
    "slow/test_glue.py", "slow/test_trajectories.py", "slow/test_mesh.py", "slow/test_compiling.py",
    "distributed/test_strategies.py", "distributed/test_reuse.py", "distributed/test_parts_of_models.py", "distributed/test_surviving.py",
    "pipeline/test_examples.py", "pipeline/test_text_classification.py", "pipeline/test_follower_faults.py", "pipeline/test_staleness.py",
    "prediction/tests/test_predicting.py", "planning/tests/test_planning.py", "reproduce/tests/test_reproducing.py",
    "search/tests/test_sampled_search.py", "search/tests/test_searched_sweep.py", "shared_steps/tests/test_trunks_in_a_workflow.py",
    "shards/tests/test_sharded_data.py", "fast_tokenizer/tests/test_truncation.py", "local_database/tests/test_lost_machine.py",
)  # fmt: skip

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
WORDS = [
    "a",
    "bad",
    "boring",
    "film",
    "good",
    "great",
    "is",
    "it",
    "movie",
    "never",
    "not",
    "plot",
    "really",
    "story",
    "that",
    "the",
    "this",
    "very",
    "was",
    "what",
]


def pytest_configure(config: pytest.Config) -> None:
    """Tests compute on CPUs whatever the machine has, except those of tests/gpu."""
    if not any("tests/gpu" in argument for argument in config.args):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.fixture(scope="session")
def tiny_tokenizer(tmp_path_factory) -> Path:
    """A folder with a word tokenizer which, like some published ones, has its own padding and truncation."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(SPECIAL + WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_padding(length=50)
    tokenizer.enable_truncation(50)
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: next((place for name, place in places.items() if str(item.path).endswith(f"/{name}")), len(places)))


@pytest.fixture(scope="session")
def made_once(tmp_path_factory) -> Callable[[str, Callable[[Path], object]], Path]:
    """Makes a folder of that name, unless one of the test processes that work side by side has made it. Nothing may change it."""
    temporary = tmp_path_factory.getbasetemp()
    shared = temporary.parent if "PYTEST_XDIST_WORKER" in os.environ else temporary

    def made(name: str, make: Callable[[Path], object]) -> Path:
        with FileLock(shared / f"{name}.lock"):
            if not (done := shared / f"{name}.done").exists():
                make(shared / name)
                done.touch()
        return shared / name

    return made


@pytest.fixture(scope="session")
def workspace(made_once) -> Path:
    """One finished workflow for all tests that only read it; a test that changes something copies it or makes its own."""
    from pipeline.workspace import make_workspace, snakemake

    return made_once("workspace", lambda folder: snakemake(make_workspace(folder)))


@pytest.fixture
def programs(tmp_path, monkeypatch) -> Callable[..., None]:
    """Shell scripts in the places of programs such as SLURM's: `programs(squeue="cat $HERE/queue")`, where HERE is the test's folder."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("HERE", str(tmp_path))
    (tmp_path / "bin").mkdir()

    def say(**scripts: str) -> None:
        for name, script in scripts.items():
            new = tmp_path / "bin" / f"{name}.new"
            new.write_text(f"#!/bin/sh\n{script}\n")
            new.chmod(0o755)
            new.replace(new.with_name(name))  # at once, since threads may call it meanwhile

    return say


@pytest.fixture
def in_parts(monkeypatch):
    """A stage that trains runs part by part, and one that trains what is no run, as extras may add them."""

    from snaketrain.orchestration.stages import Training, classes

    class TrainPart(Training):
        name, folder, part_of = "train_part", "runs/{}/parts/{}", "train_model"

    class TrainTrunk(Training):
        name, folder = "train_trunk", "trunks/{}/training"

    for stage in (TrainPart, TrainTrunk):
        monkeypatch.setitem(classes(), stage.name, stage)
