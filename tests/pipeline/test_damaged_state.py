"""What lies beside results and is read back: whatever befalls one of these files, no other figure comes out of it.

Each is edited, truncated, deleted or replaced by that of another run, and the workflow is started again with another setting of the
evaluation, which reads stored scores instead of running the model, and with the training forced, which reads all that it has left. Then
the comparison has the figures of a workflow that nothing befell, or the command refuses and names the file.
"""

import csv
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.workspace import make_workspace, snakemake, write_sentences

pytestmark = pytest.mark.slow

SMALL, OTHER = "results/runs/small", "results/runs/other"
TRAIN = {"batch_tokens": 100, "epochs": 2, "learning_rate": 1e-3, "evaluations_per_epoch": 2}
MEASURED = ("minutes", "examples_per_second", "peak_memory_mb")  # of another attempt, where one was needed
AGAIN = ("--config", "evaluate={confidence: 0.9}")
TRAINED_AGAIN = (*AGAIN, "--forcerun", "train_model", "select_checkpoint")
FILES = {  # as a pattern below the workspace: how the workflow is started again
    f"{SMALL}/training/journal.jsonl": TRAINED_AGAIN,
    f"{SMALL}/training/run.json": TRAINED_AGAIN,
    f"{SMALL}/training/manifest.json": AGAIN,
    f"{SMALL}/training/.made-before.json": TRAINED_AGAIN,
    f"{SMALL}/training/.digests.json": TRAINED_AGAIN,
    f"{SMALL}/training/checkpoints/step-*/state.json": TRAINED_AGAIN,
    f"{SMALL}/selection/selection.json": AGAIN,
    f"{SMALL}/selection/manifest.json": AGAIN,
    f"{SMALL}/evaluation/scores/*/test.json": AGAIN,
    f"{SMALL}/evaluation/scores/*/test.npz": AGAIN,
    f"{SMALL}/evaluation/test_results.json": (),
    f"{SMALL}/evaluation/manifest.json": (),
    f"{SMALL}/sets/more/more_results.json": (),
    "results/data/*/manifest.json": TRAINED_AGAIN,
}
HARMS = ("edited", "truncated", "deleted", "another's")
EDITED = ("training/manifest.json", "training/run.json", "state.json", "selection.json", "scores/*/test.json")


def cases() -> list[Any]:
    """Each in one of the ways, and those that are read most edited as well."""
    found = dict.fromkeys((pattern, HARMS[0]) for pattern in FILES if pattern.endswith(EDITED))
    found |= dict.fromkeys((pattern, HARMS[number % len(HARMS)]) for number, pattern in enumerate(FILES))
    names = {pattern: re.sub(r"^results/|\W+", "-", pattern).strip("-") for pattern in FILES}
    return [pytest.param(pattern, how, id=f"{names[pattern]}, {how}") for pattern, how in found]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = make_workspace(
        tmp_path_factory.mktemp("damage") / "finished",
        train=TRAIN,
        evaluation_sets={"more": {"path": "more.csv"}},
        runs={"small": {}, "other": {"train.seed": 1}},
    )
    write_sentences(folder / "more.csv", 60)
    snakemake(folder)
    return folder


@pytest.fixture(scope="module")
def expected(finished) -> dict[tuple[str, ...], list[dict[str, str]]]:
    """The figures of workflows that nothing befell, by how they were started again."""
    return {words: figures(after(finished, words)) for words in set(FILES.values())}


def after(finished: Path, words: tuple[str, ...]) -> Path:
    folder = finished.with_name(f"intact-{len(words)}")
    shutil.copytree(finished, folder, symlinks=True)
    snakemake(folder, *words)
    return folder


def figures(folder: Path) -> list[dict[str, str]]:
    with open(folder / "results/comparison/runs.csv", newline="") as file:
        return [{name: cell for name, cell in row.items() if name not in MEASURED} for row in csv.DictReader(file)]


def harm(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "edited":  # the last digit that is not part of a checksum
        begins = content.rfind(b'"checksum"') if b'"checksum"' in content else len(content)
        place = [match.start() for match in re.finditer(rb"[0-9]", content[:begins])][-1]
        path.write_bytes(content[:place] + (b"7" if content[place : place + 1] != b"7" else b"3") + content[place + 1 :])
    elif how == "truncated":
        path.write_bytes(content[: 2 * len(content) // 3])
    elif how == "deleted":
        path.unlink()
    else:
        path.write_bytes(another(path).read_bytes())


def another(path: Path) -> Path:
    """The same file of the other run; of what the runs share, that of another data set."""
    text = str(path)
    if SMALL in text:
        found = sorted(
            Path(text[: text.index(SMALL)]).glob(re.sub(r"scores/[^/]+", "scores/*", text[text.index(SMALL) :].replace(SMALL, OTHER)))
        )
        return found[0]
    return next((each for each in sorted(path.parent.glob("*.json")) if each != path), path.parents[1] / "report.json")


@pytest.mark.parametrize(("pattern", "how"), cases())
def test_no_other_figure_comes_out_of_a_damaged_file(finished, expected, tmp_path, pattern, how):
    folder, words = tmp_path / "project", FILES[pattern]
    shutil.copytree(finished, folder, symlinks=True)
    path = sorted(folder.glob(pattern))[0]
    harm(path, how)
    done = snakemake(folder, *words, check=False)
    name = str(path.relative_to(folder))
    if done.returncode:
        printed = done.stdout + done.stderr + "".join(log.read_text() for log in (folder / "logs").rglob("*.log"))
        assert "Traceback" not in printed and re.search(rf"{re.escape(name)}: (is|cannot)", printed), printed[-4000:]
    else:
        assert figures(folder) == expected[words]
