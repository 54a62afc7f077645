"""Faults of a training and their consequences: kills, signals, full disks, non-finite losses, hangs, out of memory."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import limits
import pytest
from pipeline.warm_python import warm_python

from snaketrain.runtime.journal import read_events
from snaketrain.runtime.run_folder import microbatches_that_fit
from snaketrain.runtime.stages import settings_words

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "benchmarks"))

import kill_anywhere  # noqa: E402
from distributed import forking  # noqa: E402

TASK = '''
import os
import signal
import time
from pathlib import Path

import torch  # noqa: E402
from snaketrain.tasks.text_classification import TextClassification  # noqa: E402


class Odd(TextClassification):
    """`calls` counts the steps of this process; what happens at which of them, the test says."""

    def __init__(self, bad=(), spikes=(), sleep_from=None, rows=None, everywhere=True, slow=0.0, stop_at=None):
        self.bad, self.spikes, self.sleep_from, self.rows, self.calls = bad, spikes, sleep_from, rows, 0
        self.everywhere, self.slow, self.stop_at = everywhere, slow, stop_at

    def training_step(self, modules, batch):
        self.calls += 1
        loss = super().training_step(modules, batch)
        self.perhaps_stop()
        if self.slow and self.calls == 6:
            self.file("slow").touch()
            time.sleep(self.slow)
        if self.sleep_from and self.calls >= self.sleep_from and torch.distributed.get_rank() == 1:
            time.sleep(600)
        if self.rows and len(batch["ids"]) > self.rows:
            raise torch.OutOfMemoryError(f"{len(batch['ids'])} rows are too many")
        here = self.everywhere or torch.distributed.get_rank() == 1
        if here and self.calls in self.spikes:
            loss = 1e4 * loss
        return loss * float("nan") if here and self.calls in self.bad else loss

    def evaluation_step(self, outputs, batch):
        with open(self.file("evaluated"), "a") as file:
            file.write("after\\n" if self.file("stopped").exists() else "before\\n")
        self.perhaps_stop()
        return super().evaluation_step(outputs, batch)

    def predict(self, outputs, batch):
        if self.file("predict").exists() and torch.distributed.get_rank() == 1:
            exec(self.file("predict").read_text())
        return super().predict(outputs, batch)

    def perhaps_stop(self):
        if self.calls == self.stop_at and os.environ.get("RANK", "0") == "0" and not self.file("stopped").exists():
            self.file("stopped").touch()
            os.kill(os.getpid(), signal.SIGTERM)

    @staticmethod
    def file(name):
        return Path(__file__).with_name(name)


class Twice(Odd):
    """Learns from each batch twice, and counts in a buffer what it has seen; the memory runs out when the first update is made."""

    def build(self, *given):
        modules = super().build(*given)
        modules["model"].register_buffer("seen", torch.zeros(2))
        return modules

    def objectives(self, modules):
        return [(self.once, ["model"]), (self.again, ["model"])]

    def once(self, modules, batch):
        self.note(modules, 0, batch)
        return TextClassification.training_step(self, modules, batch)

    def again(self, modules, batch):
        self.note(modules, 1, batch)
        return {"again": 2.0 * self.training_step(modules, batch)}

    def note(self, modules, place, batch):
        getattr(modules["model"], "module", modules["model"]).seen[place] += len(batch["ids"])
'''


@pytest.fixture(scope="module", autouse=True)
def preloaded():
    forking.preload()


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory) -> Path:
    """An undisturbed training on one process."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    assert forking.run(kill_anywhere.arguments(data, folder, 1), 1, folder.with_suffix(".log")) == [0]
    return folder


def odd(folder: Path, **arguments) -> dict:
    folder.parent.mkdir(parents=True, exist_ok=True)
    (folder.parent / "odd.py").write_text(TASK)
    return {"use": f"{folder.parent / 'odd.py'}:Odd", "arguments": arguments}


def events(folder: Path, kind: str) -> list[dict]:
    return [event for event in read_events(folder / "journal.jsonl")[0] if event["event"] == kind]


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), pytest.param(2, 4, marks=pytest.mark.slow)])
def test_resumes_with_another_number_of_processes(data, tmp_path, before, after):
    """Without dropout, which draws other masks on other processes."""
    without = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    whole, words = (kill_anywhere.arguments(data, tmp_path / name, 1, model=without) for name in ("whole", "parts"))
    assert forking.run(whole, before, tmp_path / "whole.log") == [0] * before
    pids = forking.start(words, before, tmp_path / "parts.log")
    limits.until(lambda: len(events(tmp_path / "parts", "train")) >= 4)
    os.kill(pids[-1], signal.SIGTERM)  # one is enough: all ranks agree on a stop
    assert forking.wait(pids) == [75] * before
    assert forking.run(words, after, tmp_path / "parts.log") == [0] * after
    attempts = events(tmp_path / "parts", "attempt")
    assert [(event["processes"], event["precision"]) for event in attempts] == [(before, "fp32"), (after, "fp32")]
    assert json.loads((tmp_path / "parts/manifest.json").read_text())["facts"]["precision"] == "fp32"
    expected, found = ({e["step"]: e["metrics"]["loss"] for e in events(tmp_path / name, "train")} for name in ("whole", "parts"))
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, *(pytest.param(each, marks=pytest.mark.slow) for each in (signal.SIGINT, signal.SIGUSR1))]
)
def test_torchrun_passes_a_signal_on_and_waits_until_all_have_saved(data, tmp_path, number):
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "2", "--shutdown-timeout", "600"]
    torchrun += ["--signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1", str(forking.SCRIPT)]
    words = kill_anywhere.arguments(data, tmp_path, 1, epochs=40)
    process = subprocess.Popen([*torchrun, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    limits.until(lambda: len(events(tmp_path, "train")) >= 3)
    process.send_signal(number)
    output = process.communicate(timeout=limits.seconds(120))[0].decode()
    assert process.returncode != 0
    (end,) = events(tmp_path, "end")
    assert end["status"] == "STOPPED" and end["signals"]
    assert f"step-{end['step']:08d}" in {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert f"at step {end['step']} of" in output and "Run the same command to resume" in output


def test_a_second_interrupt_ends_at_once_and_loses_nothing_that_was_saved(data, tmp_path):
    task = odd(tmp_path / "run", slow=600)
    words = kill_anywhere.arguments(data, tmp_path / "run", 1, epochs=400, task=task)
    (pid,) = forking.start(words, 1, tmp_path / "log")
    saved = tmp_path / "run/checkpoints/step-00000004"
    limits.until(lambda: (tmp_path / "slow").exists() and saved.exists())
    os.kill(pid, signal.SIGINT)
    time.sleep(limits.seconds(0.3))
    os.kill(pid, signal.SIGINT)
    assert forking.wait([pid], 60) == [130]  # not at the end of the step
    assert sorted((tmp_path / "run/checkpoints").iterdir()) == [saved]


def test_a_full_disk_is_reported_and_loses_nothing_that_was_saved(data, tmp_path, alone):
    place = tmp_path / "small"
    place.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1000k", "tmpfs", str(place)]).returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        words = kill_anywhere.arguments(data, place / "run", 1)
        assert forking.run(words, 1, tmp_path / "log") == [1]
        told = (tmp_path / "log").read_text()
        assert "the checkpoint cannot be saved" in told and "Earlier ones are intact" in told
        assert events(place / "run", "end")[-1]["status"] == "FAILED"
        before = [path.name for path in (place / "run/checkpoints").glob("step-*")]
        assert before and not list((place / "run/checkpoints").glob(".step-*"))
        subprocess.run(["mount", "-o", "remount,size=50m", str(place)], check=True)
        assert forking.run(words, 1, tmp_path / "log") == [0]
        assert events(place / "run", "attempt")[-1]["resume_step"] == int(max(before).removeprefix("step-"))
        assert kill_anywhere.same(kill_anywhere.result(place / "run"), kill_anywhere.result(alone))
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_nonfinite_steps_are_skipped_and_recorded(data, tmp_path, alone):
    words = kill_anywhere.arguments(data, tmp_path / "run", 1, task=odd(tmp_path / "run", bad=[20, 21]))
    assert forking.run(words, 1, tmp_path / "log") == [0]
    bad = events(tmp_path / "run", "bad_step")
    assert [(event["step"], event["processes"]) for event in bad] == [(20, [0]), (21, [0])]
    assert all(len(event["examples"]) > 1 for event in bad)
    weights, told = kill_anywhere.result(tmp_path / "run")
    expected = kill_anywhere.result(alone)[1]
    assert all(told["train", step] == expected["train", step] for step in (3, 6, 9, 12, 15, 18))
    assert told["train", 24] != expected["train", 24]
    assert all(map(finite, weights.values()))
    assert all(map(finite, (metrics["loss"] for metrics in told.values())))


def test_a_nonfinite_loss_or_a_spike_on_one_process_is_skipped_by_all(data, tmp_path):
    task = odd(tmp_path / "run", bad=[20], spikes=[24], everywhere=False)
    words = kill_anywhere.arguments(data, tmp_path / "run", 1, task=task, spike_factor=100)
    assert forking.run(words, 2, tmp_path / "log") == [0, 0]
    bad = events(tmp_path / "run", "bad_step")
    assert [(event["step"], event["processes"]) for event in bad] == [(20, [1]), (24, [])]
    assert "above 100 times the usual one" in bad[1]["why"]


def test_too_many_nonfinite_steps_roll_back_and_are_then_skipped(data, tmp_path):
    words = kill_anywhere.arguments(data, tmp_path / "run", 1, task=odd(tmp_path / "run", bad=[20, 21, 22]), bad_steps_allowed=2)
    assert forking.run(words, 1, tmp_path / "log") == [0]
    (rollback,) = events(tmp_path / "run", "rollback")
    assert (rollback["step"], rollback["to"]) == (22, 19)
    assert kill_anywhere.result(tmp_path / "run")[1]["train", 24]["loss"] > 0


def test_it_gives_up_after_some_rollbacks_and_names_the_examples(data, tmp_path):
    task = odd(tmp_path / "run", bad=list(range(20, 99)))
    words = kill_anywhere.arguments(data, tmp_path / "run", 1, task=task, bad_steps_allowed=1, rollbacks_allowed=2)
    assert forking.run(words, 1, tmp_path / "log") == [1]
    assert len(events(tmp_path / "run", "rollback")) == 2
    last = events(tmp_path / "run", "bad_step")[-1]
    error = events(tmp_path / "run", "end")[-1]["error"]
    assert "2 steps in a row had losses or gradients that are not finite" in error
    assert str(sorted(last["examples"])[-1]) in error


@pytest.mark.slow
def test_a_stuck_process_is_named_and_the_training_ends(data, tmp_path):
    stall_seconds = str(limits.whole_seconds(6))
    words = [
        "--stall-seconds",
        stall_seconds,
        *kill_anywhere.arguments(data, tmp_path / "run", 1, task=odd(tmp_path / "run", sleep_from=10)),
    ]
    assert forking.run(words, 2, tmp_path / "log") == [76, 76]
    log = (tmp_path / "run/logs/rank-0.log").read_text()
    assert f"nothing has moved for {stall_seconds} seconds (compute.stall_seconds)" in log
    waits, is_busy = (
        re.search(r"rank 0: waiting in .*, in \w+ \((.*)\)$", log, re.M),
        re.search(r"rank 1: busy in .*odd.py.* \((.*)\)$", log, re.M),
    )
    assert waits and is_busy, log
    assert re.fullmatch(r"\w+ [\d,]+", waits[1]) and is_busy[1] == f"not in {waits[1]} yet"
    stacks = sorted(path.name for path in (tmp_path / "run/logs/stalled").iterdir())
    assert stacks == ["rank-0.json", "rank-0.txt", "rank-1.json", "rank-1.txt"]


@pytest.fixture(scope="module")
def selected(data, tmp_path_factory) -> list[str]:
    """The arguments of an evaluation: a training and its best checkpoint."""
    folder = tmp_path_factory.mktemp("evaluated")
    words = kill_anywhere.arguments(data, folder / "training", 1, task=odd(folder / "training"), epochs=1)
    assert forking.run(words, 1, folder / "log") == [0], (folder / "log").read_text()
    paths = ["--run-name", "test", "--data", str(data), "--training", str(folder / "training/manifest.json")]
    select = [warm_python(), str(REPOSITORY / "workflow/scripts/select_checkpoint.py"), *paths[2:]]
    select += settings_words(folder, "select_checkpoint", {"select": {"metric": "loss", "mode": "min"}})
    done = subprocess.run([*select, "--output", str(folder / "selection/manifest.json")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    settings = settings_words(folder, "evaluate_model", {"evaluate": {"batch_size": 4}})
    return [*paths, "--selection", str(folder / "selection/manifest.json"), "--device", "cpu", *settings]


@pytest.mark.parametrize(
    ("happens", "codes", "told"),
    [
        ("raise SystemExit('no such word')", [1, 1], ["no such word"]),
        ("raise ValueError('no such number')", [1, 1], ["no such number"]),
        pytest.param(
            "time.sleep(600)",
            [76, 76],
            ["for {stall} seconds (compute.stall_seconds)", "rank 0: waiting in", "rank 1: busy in", "odd.py"],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["exit", "error", "stuck"],
)
def test_an_evaluation_ends_if_one_of_its_processes_hangs(selected, tmp_path, happens, codes, told):
    task = Path(selected[selected.index("--training") + 1]).parents[1] / "predict"
    task.write_text(happens)
    stall_seconds = limits.whole_seconds(4)
    words = ["--output", str(tmp_path / "evaluation/manifest.json"), "--stall-seconds", str(stall_seconds), *selected]
    pids = forking.start(words, 2, tmp_path / "log", REPOSITORY / "workflow/scripts/evaluate_model.py")
    assert forking.wait(pids, 120) == codes, (tmp_path / "log").read_text()
    assert all(text.format(stall=stall_seconds) in (tmp_path / "log").read_text() for text in told)
    assert not (tmp_path / "evaluation/manifest.json").exists()


def test_out_of_memory_is_explained(data, tmp_path):
    words = kill_anywhere.arguments(data, tmp_path / "run", 1, task=odd(tmp_path / "run", rows=4))
    assert forking.run(words, 1, tmp_path / "log") == [1]
    error = events(tmp_path / "run", "end")[-1]["error"]
    assert "input_ids (16, " in error and "train.accumulate: 2" in error


@pytest.mark.parametrize("processes", [1, 2])
def test_out_of_memory_is_answered_with_smaller_microbatches(data, tmp_path, processes):
    """One process continues by itself; with several, each attempt ends, and the next has smaller microbatches."""
    words = kill_anywhere.arguments(data, tmp_path / "run", 1, task=odd(tmp_path / "run", rows=4))
    words.insert(0, "--reduce-batch-on-oom")
    attempts = []
    while (codes := forking.run(words, processes, tmp_path / "log")) != [0] * processes:
        attempts.append(codes)
        assert len(attempts) < 4, (tmp_path / "log").read_text()[-2000:]
    assert len(attempts) == (0 if processes == 1 else 1)
    assert microbatches_that_fit(tmp_path / "run") == (4 if processes == 1 else 2)
    assert json.loads((tmp_path / "run/manifest.json").read_text())["facts"]["steps"] == 44


@pytest.mark.parametrize(
    ("processes", "stop_at", "evaluated"), [(1, 7, 8), pytest.param(1, 8, 8, marks=pytest.mark.slow), (2, 11, 11), (1, 43, 44)]
)
def test_a_stop_at_an_evaluation_saves_first_and_evaluates_after_the_resume(data, tmp_path, processes, stop_at, evaluated):
    """The signal arrives in the step before the evaluated one, or in that step; within an epoch, at its end, in the last step."""
    for name, when in (("whole", None), ("parts", stop_at)):
        words = kill_anywhere.arguments(data, tmp_path / name / "run", 1, task=odd(tmp_path / name / "run", stop_at=when))
        first = forking.run(words, processes, tmp_path / "log")
        if when:
            assert first == [75] * processes, (tmp_path / "log").read_text()
            assert evaluated not in {event["step"] for event in events(tmp_path / "parts/run", "eval")}
            state = tmp_path / f"parts/run/checkpoints/step-{evaluated:08d}/state.json"
            assert json.loads(state.read_text())["metrics"] is None
            assert events(tmp_path / "parts/run", "end")[-1]["status"] == "STOPPED"
            assert "after" not in (tmp_path / "parts/evaluated").read_text()
            assert forking.run(words, processes, tmp_path / "log") == [0] * processes
    assert kill_anywhere.same(*(kill_anywhere.result(tmp_path / name / "run") for name in ("whole", "parts")))
    states = [
        {path.parent.name: json.loads(path.read_text()) for path in (tmp_path / name / "run/checkpoints").glob("step-*/state.json")}
        for name in ("whole", "parts")
    ]
    for state in (*states[0].values(), *states[1].values()):
        assert state.pop("settings") and state.pop("callbacks", True)  # the two tasks have other arguments: where they are
    assert states[0] == states[1] and not list((tmp_path / "parts/run/checkpoints").glob(".*"))


def test_a_stop_in_the_first_evaluation_leaves_nothing_to_save(data, tmp_path):
    words = kill_anywhere.arguments(data, tmp_path / "run", 1, task=odd(tmp_path / "run", stop_at=0), epochs=1)
    assert forking.run(words, 1, tmp_path / "log") == [75]
    assert (
        not list((tmp_path / "run").glob("checkpoints/*")) and "at step 0 of 11; nothing is trained yet" in (tmp_path / "log").read_text()
    )
    assert forking.run(words, 1, tmp_path / "log") == [0]
    assert [event["step"] for event in events(tmp_path / "run", "eval")] == [0, 4, 8, 11]


@pytest.mark.parametrize("processes", [1, 2])
def test_out_of_memory_after_the_first_of_two_updates_repeats_neither(data, tmp_path, processes):
    """Against a training with enough memory; without dropout, which draws other masks for smaller microbatches."""
    without = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    for name, rows in (("enough", None), ("little", 4)):
        task = {"use": f"{tmp_path}/odd.py:Twice", "arguments": odd(tmp_path / name, rows=rows)["arguments"]}
        words = ["--reduce-batch-on-oom", *kill_anywhere.arguments(data, tmp_path / name, 1, model=without, task=task, epochs=2)]
        while (codes := forking.run(words, processes, tmp_path / "log")) != [0] * processes:
            assert set(codes) <= {1, 76} and name == "little", (tmp_path / "log").read_text()[-2000:]
    assert microbatches_that_fit(tmp_path / "little") > 1
    (weights, told), (expected, expected_told) = (kill_anywhere.result(tmp_path / name) for name in ("little", "enough"))
    assert weights["seen"].tolist() == expected["seen"].tolist()
    for name in weights:
        assert weights[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-5)
    assert told.keys() == expected_told.keys()
    for key, metrics in told.items():
        assert metrics == pytest.approx(expected_told[key], rel=1e-4)


def finite(value) -> bool:
    import numpy as np

    return bool(np.isfinite(value).all())
