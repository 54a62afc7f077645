"""Sampled searches: what is proposed, what is refused, and what a killed one leaves."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import limits
import pytest

from snaketrain.config.errors import ConfigurationError
from snaketrain.extras.search import sample, study
from snaketrain.extras.search.study import SampledSearch
from snaketrain.extras.search.top_level import SampledRuns, Trials
from snaketrain.orchestration.pipeline import Pipeline
from snaketrain.runtime.manifests import Manifest, digests, write_json, write_manifest
from tools.clean import unneeded

SPACE = {"train.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}, "train.seed": [3, 4]}


@pytest.fixture(autouse=True)
def workspace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def search(name: str = "tuned", space: dict | None = None, **changes) -> SampledSearch:
    """As the command makes it when it starts, over what it left before."""
    settings = {"space": space or SPACE, "trials": 6, "at_once": 3} | changes
    impossible = settings.pop("why_impossible", lambda run: "")
    return SampledSearch(name, SampledRuns.model_validate(settings), "min", "basis", impossible)


def finish(run: str, value: float, loss: float = 1.0, examples: str = "same") -> None:
    winner = {"value": value, "metrics": {"loss": loss}}
    for stage, file, content in (
        ("selection", "selection.json", {"winner": winner}),
        ("evaluation", "dev_results.json", {"examples_digest": examples}),
    ):
        folder = Path("results/runs", run, stage)
        write_json(folder / file, content)
        write_manifest(folder / "manifest.json", Manifest(stage, "", {}, {}, digests(folder, [file])))


def settings(name: str) -> list[dict]:
    return [trial.settings for trial in Trials.read(name).trials]


def test_a_search_that_is_killed_between_two_proposals_proposes_the_same(monkeypatch):
    whole = search("whole")
    assert whole.propose() == 3 and whole.propose() == 0
    killed = search("killed")
    asked = iter([None, KeyboardInterrupt])
    ask = killed.study.ask
    monkeypatch.setattr(killed.study, "ask", lambda space: raising(next(asked)) or ask(space))
    with pytest.raises(KeyboardInterrupt):
        killed.propose()
    assert search("killed").propose() == 2 and settings("killed") == settings("whole")
    for name in ("whole", "killed"):
        for number, trial in enumerate(Trials.read(name).trials):
            finish(trial.run, number / 10)
        again = search(name)
        again.tell()
        assert again.propose() == 3
    assert settings("killed") == settings("whole") and len(settings("whole")) == 6


def raising(error: type[BaseException] | None) -> None:
    if error:
        raise error


def test_cleaning_keeps_what_was_sampled():
    search().propose()
    config = {"data": {"train": {"path": "raw.csv"}, "tokenizer": {"path": "tokenizer"}}, "search": {"tuned": {"space": SPACE}}}
    assert unneeded([Pipeline(config, reads_files=False)]) == []
    del config["search"]
    assert unneeded([Pipeline(config, reads_files=False)]) == [Path("results/searches/tuned")]


def test_edited_settings_of_a_sampled_run_are_refused():
    search().propose()
    path = Path("results/searches/tuned/trials.json")
    before = settings("tuned")
    path.write_text(path.read_text().replace('"train.seed": ', '"train.seed": 1', 1))
    with pytest.raises(ConfigurationError, match=r"trials\.json: it was changed after it was written.*Put a copy of it back, or delete it"):
        Trials.read("tuned")
    path.unlink()
    search()
    assert settings("tuned") == before


def log_of_study(old: str, new: str) -> None:
    log = Path("results/searches/tuned/study.log")
    assert old in log.read_text()
    log.write_text(log.read_text().replace(old, new))


@pytest.mark.parametrize("damage", [lambda: log_of_study("0.5", "0.1"), lambda: os.truncate("results/searches/tuned/study.log", 400)])
def test_an_edited_result_of_a_sampled_run_is_refused(damage):
    """Optuna would propose by it, and call another run the best."""
    first = search()
    first.propose()
    finish("tuned-000", 0.5)
    first.tell()
    assert search().best.value == 0.5
    damage()
    with pytest.raises(SystemExit, match=r"study\.log: was changed after it was written"):
        search()


def test_half_a_line_of_a_killed_process_is_removed():
    search().propose()
    before = settings("tuned")
    with open("results/searches/tuned/study.log", "a") as log:
        log.write('{"op_code":4,"worker')
    again = search()
    assert settings("tuned") == before and len(again.waiting) == 3
    finish("tuned-000", 0.5)
    again.tell()
    assert search().best.value == 0.5


@pytest.mark.slow
def test_the_lock_of_a_killed_process_is_removed(monkeypatch):
    search().propose()
    os.symlink(Path("results/searches/tuned/study.log").resolve(), "results/searches/tuned/study.log.lock")
    monkeypatch.setattr(study, "LOCK_SECONDS", 3)
    finish("tuned-000", 0.5)
    search().tell()
    assert search().best.value == 0.5


def test_results_that_are_there_before_their_run_was_proposed_are_refused():
    finish("tuned-001", 0.5)
    with pytest.raises(SystemExit, match="results/runs/tuned-001 is there before this run was proposed"):
        search().propose()


def test_a_list_stays_as_it_was_and_a_range_may_grow():
    schedules = ["linear", {"use": "warmup_stable_decay", "arguments": {"decay": 0.2}}]
    search(space={**SPACE, "train.schedule": schedules}).propose()
    assert all(each["train.schedule"] in schedules for each in settings("tuned"))
    wider = {"low": 1e-5, "high": 1e-1, "log": True}
    assert len(search(space={"train.learning_rate": wider, "train.schedule": schedules}).waiting) == 3
    with pytest.raises(SystemExit, match=r"search.tuned.space.train.seed: is no longer what it was for the first runs, the list \[3, 4\]"):
        search(space={"train.seed": [3, 4, 5]})
    with pytest.raises(SystemExit, match="a range of numbers on a logarithmic scale"):
        search(space={"train.learning_rate": {"low": 1e-4, "high": 1e-2}})


def test_values_that_exclude_each_other_are_left_out_and_reported(capsys):
    made = search(why_impossible=lambda run: "train.seed: 4 is too many" if run["train.seed"] == 4 else "", at_once=6)
    made.propose()
    trials = Trials.read("tuned").trials
    assert {trial.failed for trial in trials if trial.settings["train.seed"] == 4} == {True}
    assert len(made.waiting) == sum(trial.settings["train.seed"] == 3 for trial in trials) > 0
    assert "is left out, as a failed trial: train.seed: 4 is too many" in capsys.readouterr().err


def test_settings_that_no_run_can_have_are_reported_before_anything_is_proposed():
    common = {"data": {"train": {"path": "a.csv"}, "tokenizer": {"path": "tokenizer"}}}
    space = {"train.learning_rat": [0.1, 0.2], "train.batch_size": {"low": 0, "high": 8}, "train.seed": [1], "tune.x": [1]}
    problems = list(sample.space_problems(common, "tuned", SampledRuns(space=space)))
    assert [problem.partition(": ")[0] for problem in problems] == [
        f"search.tuned.space.{setting}" for setting in ("train.learning_rat", "train.batch_size", "tune.x")
    ]
    assert "Did you mean 'learning_rate'?" in problems[0] and not Path("results").exists()


def test_a_workflow_without_results_ends_the_search_with_a_message(capfd):
    assert sample.sample([search()], ["true"]) == 1
    assert "tuned-000, tuned-001, tuned-002 have no result yet. The same command continues." in capfd.readouterr().err
    assert sample.sample([search()], ["sh", "-c", "exit 3"]) == 3


def test_ctrl_c_leaves_the_workflow_the_time_that_it_needs():
    slow = "import signal, time\nsignal.signal(signal.SIGINT, lambda *_: (time.sleep(1), open('ended', 'w').close(), exit(1)))\n"
    slow += "open('began', 'w').close()\ntime.sleep(60)"
    folder = str(Path(sample.__file__).parent)
    code = f"import sys; sys.path.insert(0, {folder!r}); import sample; sys.exit(sample.run_workflow([sys.executable, '-c', {slow!r}]))"
    command = ["env", "--default-signal=INT", sys.executable, "-c", code]
    running = subprocess.Popen(command, start_new_session=True)
    limits.until(Path("began").exists, 60, running)
    os.killpg(running.pid, signal.SIGINT)
    assert running.wait(limits.seconds(60)) == 130 and Path("ended").exists()


def test_sigterm_ends_the_workflow_too(tmp_path):
    waits = "import pathlib, signal, sys, time; signal.signal(15, lambda *_: sys.exit(7)); pathlib.Path('waits').touch(); time.sleep(60)"
    runs = f"import sys, sample; sys.exit(sample.run_workflow([sys.executable, '-c', {waits!r}]))"
    paths = os.pathsep.join(map(str, Path(sample.__file__).parents[:4]))
    process = subprocess.Popen([sys.executable, "-c", runs], cwd=tmp_path, env=os.environ | {"PYTHONPATH": paths})
    limits.until(lambda: (tmp_path / "waits").exists(), 30, process)
    process.terminate()
    assert process.wait(limits.seconds(20)) == 7


def test_the_best_run_is_the_one_that_the_mode_calls_so():
    for mode, best in (("min", 0.0), ("max", 0.2)):
        proposed = SampledSearch(mode, SampledRuns.model_validate({"space": SPACE, "trials": 6, "at_once": 3}), mode, "basis")
        proposed.propose()
        for number, trial in enumerate(Trials.read(mode).trials):
            finish(trial.run, number / 10)
        proposed.tell()
        assert proposed.study.best_trial.value == best


def test_of_equal_runs_the_one_with_the_lower_loss_is_the_best():
    proposed = search()
    proposed.propose()
    for trial, loss in zip(Trials.read("tuned").trials, (0.3, 0.2, 0.2), strict=True):
        finish(trial.run, 0.5, loss)
    proposed.tell()
    assert proposed.best.run == "tuned-001"


def test_runs_of_other_development_examples_are_refused():
    proposed = search()
    proposed.propose()
    for trial, examples in zip(Trials.read("tuned").trials, ("one", "one", "another"), strict=True):
        finish(trial.run, 0.5, examples=examples)
    with pytest.raises(SystemExit, match=r"different development examples \(tuned-000, tuned-001; tuned-002\)"):
        proposed.tell()
