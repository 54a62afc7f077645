"""What several tests need: a tokenizer small enough to check by eye."""

import os
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


@pytest.fixture(scope="session")
def workspace(tmp_path_factory) -> Path:
    """One finished workflow for all tests that only read it; a test that changes something copies it or makes its own."""
    from pipeline.workspace import make_workspace, snakemake

    temporary = tmp_path_factory.getbasetemp()
    shared = temporary.parent if "PYTEST_XDIST_WORKER" in os.environ else temporary  # by the test processes that work side by side
    folder = shared / "workspace"
    with FileLock(shared / "workspace.lock"):
        if not (done := shared / "workspace.done").exists():
            snakemake(make_workspace(folder))
            done.touch()
    return folder
