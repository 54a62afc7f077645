"""`snaketrain status`, `log` and `cancel`: the state of a folder's runs, from a fake squeue and their files; their logs; and cancelling one."""

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

from snaketrain.extras.jobs import jobs
from snaketrain.orchestration.submissions import Submission, Submissions
from snaketrain.runtime.processes import start_ticks

SAVES = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: exit()); print(flush=True); time.sleep(60)"


@pytest.fixture
def slurm(tmp_path, monkeypatch, programs):
    """Programs of SLURM that do as a test says; the folder of the workflow is the current one."""
    (tmp_path / "ws").mkdir()
    monkeypatch.chdir(tmp_path / "ws")
    knows_none = """[ $# = 3 ] && echo 'No jobs in the system' && exit; echo 'Invalid job id specified' >&2; exit 1"""
    programs(squeue="true", scontrol=knows_none, scancel='echo "$@" >> $HERE/cancelled')
    return programs


def trained(run: str, steps: int, end: dict | None = None, pace: float = 2.0, kind: str = "runs", now: float | None = None) -> None:
    """A run that has taken this many of 100 steps until a moment ago, or until `now`."""
    folder = Path("results") / kind / run / "training"
    folder.mkdir(parents=True)
    began = (now or time.time()) - steps * pace
    events = [{"event": "attempt", "resume_step": 0, "steps": 100, "time": began}]
    events += [trained_step(step, step * pace, time=began + step * pace) for step in range(1, steps + 1)]
    events += [{"event": "end", "step": steps} | end] if end else []
    (folder / "journal.jsonl").write_text("".join(json.dumps({**event, "attempt": 1}) + "\n" for event in events))


def trained_step(step: int, seconds: float, **content: float) -> dict:
    return {"event": "train", "step": step, "metrics": {"loss": 1.0}, "spent": {"steps": seconds}, **content}


def submitted(number: str, comment: str, state: str = "") -> None:
    Path(f"{number}.log").write_text(f"what job {number} printed\n")
    Submissions().submitted(Submission(number, comment, "", f"{number}.log", {}))
    if state:
        Submissions().ended(number, state)


def call(monkeypatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["jobs.py", *words])
    with pytest.raises(SystemExit) as ended:
        jobs.main()
    if isinstance(ended.value.code, str):
        raise ended.value
    return ended.value.code


def table(capsys) -> dict[str, str]:
    """The lines by their first word, with single blanks."""
    return {line.split()[0]: " ".join(line.split()[1:]) for line in capsys.readouterr().out.splitlines()}


def rows(*shown: str) -> str:
    """Of squeue: number, state, reason, comment and nodes."""
    return "\n".join(f"echo '{row}|{os.getcwd()}'" for row in shown)


def test_status_of_runs_in_the_queue(slurm, monkeypatch, capsys):
    slurm(
        squeue=rows(
            "4|RUNNING|None|rule_train_model_wildcards_large|n[1-2]",
            "5|PENDING|Priority|rule_train_model_wildcards_small|",
            "6|RUNNING|None|rule_prepare_data_wildcards_words|n3",
            "3|FAILED|None|rule_train_model_wildcards_large|n1",
        )
    )
    trained("large", 40)
    Path("results/runs/later").mkdir()
    submitted("4", "rule_train_model_wildcards_large")
    assert call(monkeypatch, "status") == 0
    found = table(capsys)
    assert found["large"] == "train_model 4 RUNNING 40 of 100 2:00 n[1-2] 4.log"
    assert found["small"] == "train_model 5 PENDING (Priority) logs/slurm/rule_train_model/small/5.log"
    assert found["later"] == "train_model not started"
    assert found["words"].startswith("prepare_data 6 RUNNING n3")


@pytest.mark.parametrize(
    ("silent", "log_silent", "told"),
    [(59, 59, False), (70, 70, True), (900, 20, False), (900, 100, True)],
    ids=["short", "a hang", "an evaluation that prints", "both"],
)
def test_status_of_a_training_that_takes_no_step(slurm, monkeypatch, capsys, silent, log_silent, told):
    """Until compute.stall_seconds end it, after half an hour, it had a time left."""
    slurm(squeue=rows("4|RUNNING|None|rule_train_model_wildcards_large|n[1-2]"))
    trained("large", 40, now=time.time() - silent)
    submitted("4", "rule_train_model_wildcards_large")
    os.utime("4.log", (0, time.time() - log_silent))
    call(monkeypatch, "status")
    shown = table(capsys)["large"]
    seconds = re.search(r"RUNNING, no step for (\d+) s 40 of 100 n\[1-2\] 4.log$", shown)
    assert bool(seconds) == told and (not told or abs(int(seconds[1]) - min(silent, log_silent)) < 5), shown
    call(monkeypatch, "status", "--json")
    (found,) = json.loads(capsys.readouterr().out)
    assert found["state"] == "RUNNING" and (found["seconds_left"] is None) == told == (found["idle_seconds"] is not None)


def recorded(run: str, seconds_ago: float, **content: object) -> None:
    line = {"time": time.time() - seconds_ago, "attempt": 1, **content}
    with open(Path("results/runs", run, "training/journal.jsonl"), "a") as journal:
        journal.write(json.dumps(line) + "\n")


def test_status_of_a_training_whose_steps_take_minutes(slurm, monkeypatch, capsys):
    slurm(squeue=rows("4|RUNNING|None|rule_train_model_wildcards_large|n[1-2]"))
    trained("large", 4, pace=100.0, now=time.time() - 150)
    submitted("4", "rule_train_model_wildcards_large")
    os.utime("4.log", (0, time.time() - 150))
    recorded("large", 3, event="system")
    call(monkeypatch, "status")
    assert "no step" not in table(capsys)["large"]


def test_status_of_a_training_that_says_where_it_hangs(slurm, monkeypatch, capsys):
    """The load of its machine goes on being recorded."""
    slurm(squeue=rows("4|RUNNING|None|rule_train_model_wildcards_large|n[1-2]"))
    trained("large", 40, now=time.time() - 75)
    places = {"rank 3": "busy in own.py, line 7", "ranks 0-2": "waiting in all_reduce"}
    submitted("4", "rule_train_model_wildcards_large")
    recorded("large", 12, event="idle", seconds=65, places=places)
    recorded("large", 1, event="system")
    call(monkeypatch, "status")
    line, *below = capsys.readouterr().out.splitlines()[1:]
    seconds = re.search(r"RUNNING, no step for (\d+) s", line)
    assert seconds and 77 <= int(seconds[1]) <= 90
    assert below == ["  rank 3 busy in own.py, line 7", "  ranks 0-2 waiting in all_reduce"]
    recorded("large", 0, **trained_step(41, 82.0))
    call(monkeypatch, "status")
    assert "no step" not in table(capsys)["large"]


def test_status_of_idle_runs(slurm, monkeypatch, capsys):
    trained("stopped", 40, {"status": "STOPPED", "signals": ["SIGTERM"]})
    trained("failed", 7, {"status": "FAILED", "error": "no"})
    trained("killed", 8)
    trained("cancelled", 9, {"status": "STOPPED", "signals": ["SIGTERM"]})
    trained("finished", 100, {"status": "FINISHED"})
    for stage, folder in (("train_model", "training"), ("evaluate_model", "evaluation")):
        Path("logs", stage).mkdir(parents=True)
        Path("logs", stage, "finished.log").touch()
        Path("results/runs/finished", folder).mkdir(exist_ok=True)
        Path("results/runs/finished", folder, "manifest.json").touch()
    os.utime("logs/train_model/finished.log", (0, 0))
    submitted("9", "rule_train_model_wildcards_cancelled", "CANCELLED")
    assert call(monkeypatch, "status") == 0
    found = table(capsys)
    assert found["stopped"] == "train_model stopped by SIGTERM 40 of 100"
    assert found["failed"] == "train_model FAILED 7 of 100"
    assert found["killed"] == "train_model killed, or failed 8 of 100"
    assert found["cancelled"] == "train_model 9 CANCELLED 9 of 100 9.log"
    assert found["finished"] == "evaluate_model done 100 of 100 logs/evaluate_model/finished.log"


def test_status_of_parts_trunks_and_evaluations_of_further_sets(in_parts, slurm, monkeypatch, capsys):
    slurm(
        squeue=rows(
            "4|RUNNING|None|rule_train_part_wildcards_large_2|n1",
            "5|RUNNING|None|rule_train_trunk_wildcards_abc|n2",
            "6|RUNNING|None|rule_evaluate_set_wildcards_small_more|n3",
            "7|PENDING|Priority|rule_publish_model_wildcards_small|",
        )
    )
    trained("large", 40)
    submitted("4", "rule_train_part_wildcards_large_2")
    trained("abc", 30, kind="trunks")
    trained("small", 100, {"status": "FINISHED"})
    assert call(monkeypatch, "status", "--json") == 0
    found = [(each["run"], each["stage"], each["job"], each["step"]) for each in json.loads(capsys.readouterr().out)]
    assert found == [
        ("large", "train_part", "4", 40),
        ("small", "evaluate_set", "6", 100),
        ("small", "publish_model", "7", 100),
        ("abc", "train_trunk", "5", 30),
    ]


def test_the_log_of_a_part_that_was_trained_here(in_parts, slurm, monkeypatch, capsys):
    trained("large", 12, {"status": "STOPPED", "why": "reached part 2"})
    for stage, log in (("train_model", "large.log"), ("train_part/large", "1.log"), ("train_part/large", "2.log")):
        Path("logs", stage).mkdir(parents=True, exist_ok=True)
        Path("logs", stage, log).touch()
    os.utime("logs/train_model/large.log", (0, 0))
    os.utime("logs/train_part/large/1.log", (0, 0))
    assert call(monkeypatch, "status") == 0
    assert table(capsys)["large"] == "train_model reached part 2 12 of 100 logs/train_part/large/2.log"


def test_status_of_a_training_that_does_not_know_its_last_step(slurm, monkeypatch, capsys):
    slurm(squeue=rows("4|RUNNING|None|rule_train_model_wildcards_large|n1"))
    trained("large", 40)
    journal = Path("results/runs/large/training/journal.jsonl")
    journal.write_text(journal.read_text().replace('"steps": 100, ', ""))
    submitted("4", "rule_train_model_wildcards_large")
    assert call(monkeypatch, "status") == 0
    assert table(capsys)["large"] == "train_model 4 RUNNING 40 of ? n1 4.log"


@pytest.mark.parametrize(
    ("comment", "state", "shown"),
    [
        ("rule_train_part_wildcards_large_2", "COMPLETED", "train_model 9 reached part 2 12 of 100 9.log"),
        ("rule_train_part_wildcards_large_2", "CANCELLED", "train_model 9 CANCELLED 12 of 100 9.log"),
        ("rule_large_evaluate_model_select_checkpoint_train_model", "OUT_OF_MEMORY", "train_model 9 OUT_OF_MEMORY 12 of 100 9.log"),
    ],
)
def test_status_and_log_of_the_last_job_of_a_part_or_of_several_stages(in_parts, slurm, monkeypatch, capfd, comment, state, shown):
    trained("large", 12, {"status": "STOPPED", "why": "reached part 2"})
    submitted("8", "rule_train_part_wildcards_large_1", "COMPLETED")
    submitted("9", comment, state)
    assert call(monkeypatch, "status") == 0
    assert table(capfd)["large"] == shown
    assert call(monkeypatch, "log", "large") == 0
    assert capfd.readouterr().out == "what job 9 printed\n"


def test_status_for_programs(slurm, monkeypatch, capsys):
    trained("large", 40, {"status": "FAILED"})
    trained("small", 1)
    call(monkeypatch, "status", "--json", "large")
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["run"], found["state"], found["step"], found["steps"]) == ("large", "FAILED", 40, 100)


def test_status_of_another_folder(slurm, monkeypatch, capsys, tmp_path):
    """As `snaketrain status --directory FOLDER` is passed on."""
    trained("large", 40)
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, "status", "--directory", "ws") == 0 and "large" in table(capsys)
    assert call(monkeypatch, "status", "--directory", "elsewhere") == 2
    assert "--directory: elsewhere is no folder" in capsys.readouterr().err


def test_status_while_slurm_does_not_answer(slurm, monkeypatch, capsys):
    slurm(squeue="echo 'Unable to contact slurm controller' >&2; exit 1")
    trained("large", 40)
    submitted("4", "rule_train_model_wildcards_large")
    assert call(monkeypatch, "status") == 0
    printed = capsys.readouterr()
    assert "Unable to contact" in printed.err and "may be at work" in printed.err
    assert "train_model  4    unknown  40 of 100" in printed.out


def test_an_unknown_run_is_reported(slurm, monkeypatch):
    trained("large", 40)
    for words in (["status", "huge"], ["log", "huge"], ["cancel", "large", "huge"]):
        with pytest.raises(SystemExit, match="no run huge here. There are: large"):
            call(monkeypatch, *words)


def test_the_log_of_a_job(slurm, monkeypatch, capfdbinary):
    slurm(squeue=rows("4|RUNNING|None|rule_train_model_wildcards_large|n1"))
    trained("large", 40)
    submitted("4", "rule_train_model_wildcards_large")
    Path("4.log").write_text("".join(f"line {number}\n" for number in range(300)))
    for options, lines in (([], 100), (["-n", "2"], 2), (["--lines", "0"], 300)):
        assert call(monkeypatch, "log", "large", *options) == 0
        assert capfdbinary.readouterr().out.splitlines() == [b"line %d" % number for number in range(300 - lines, 300)]


def test_following_a_log_ends_with_the_job(slurm, monkeypatch, capfdbinary):
    monkeypatch.setattr(jobs, "SECONDS_BETWEEN_QUESTIONS", 0.2)
    slurm(squeue=f"test -e more && exit; echo more >> 4.log; touch more; {rows('4|RUNNING|None|rule_train_model_wildcards_large|n1')}")
    trained("large", 40)
    submitted("4", "rule_train_model_wildcards_large")
    assert call(monkeypatch, "log", "large", "--follow") == 0
    assert capfdbinary.readouterr().out.splitlines() == [b"what job 4 printed", b"more"]


def test_a_run_without_a_log(slurm, monkeypatch):
    Path("results/runs/later").mkdir(parents=True)
    with pytest.raises(SystemExit, match="later has no log yet: train_model, not started"):
        call(monkeypatch, "log", "later")


def test_cancel(slurm, monkeypatch, capsys, tmp_path):
    shown = ["4|RUNNING|None|rule_train_model_wildcards_large|n1", "5|PENDING|None|rule_train_model_wildcards_small|"]
    slurm(squeue=f"test -e {tmp_path}/cancelled || {{ {rows(*shown)}; }}")
    trained("large", 40, {"status": "STOPPED", "signals": ["SIGTERM"]})
    trained("done", 40, {"status": "FAILED"})
    submitted("4", "rule_train_model_wildcards_large")
    assert call(monkeypatch, "cancel", "large", "small", "done") == 0
    assert (tmp_path / "cancelled").read_text() == "4 5\n"
    printed = capsys.readouterr().out
    assert "large: saved at step 40 of 100 and ended. Start snakemake again to resume it." in printed
    assert "small: removed from the queue, where it was waiting." in printed
    assert "done: nothing to cancel (train_model: FAILED)." in printed
    assert call(monkeypatch, "cancel", "done") == 1


def test_cancel_ends_all_jobs_of_a_run_and_those_of_trunks_and_data(in_parts, slurm, monkeypatch, capsys, tmp_path):
    shown = ["4|RUNNING|None|rule_train_part_wildcards_large_2|n1", "5|RUNNING|None|rule_train_trunk_wildcards_abc|n2"]
    shown += ["6|RUNNING|None|rule_evaluate_set_wildcards_small_more|n3", "7|RUNNING|None|rule_evaluate_model_wildcards_small|n3"]
    shown += ["8|RUNNING|None|rule_prepare_data_wildcards_words|n3"]
    slurm(squeue=f"test -e {tmp_path}/cancelled || {{ {rows(*shown)}; }}")
    for run in ("large", "small"):
        trained(run, 40, {"status": "STOPPED", "signals": ["SIGTERM"]})
    trained("abc", 30, {"status": "STOPPED", "signals": ["SIGTERM"]}, kind="trunks")
    submitted("4", "rule_train_part_wildcards_large_2")
    assert call(monkeypatch, "cancel", "large", "small", "abc", "words") == 0
    assert sorted((tmp_path / "cancelled").read_text().split()) == ["4", "5", "6", "7", "8"]
    printed = capsys.readouterr().out
    assert "large: saved at step 40 of 100 and ended." in printed
    assert "abc: saved at step 30 of 100 and ended." in printed
    assert "small: evaluate_set was ended" in printed and "small: evaluate_model was ended" in printed
    assert "words: prepare_data was ended, and starts from the beginning" in printed


def test_cancel_while_slurm_does_not_answer(slurm, monkeypatch):
    slurm(squeue=rows("4|RUNNING|None|rule_train_model_wildcards_large|n1"), scancel="echo away >&2; exit 1")
    submitted("4", "rule_train_model_wildcards_large")
    with pytest.raises(SystemExit, match="away\nNothing is cancelled"):
        call(monkeypatch, "cancel", "large")


def test_a_run_on_this_machine(slurm, monkeypatch, capsys):
    training = subprocess.Popen([sys.executable, "-c", SAVES], stdout=subprocess.PIPE)
    training.stdout.readline()
    try:
        trained("large", 40)
        owner = {"job": None, "host": os.uname().nodename, "pid": training.pid, "started": start_ticks(training.pid)}
        Path("results/runs/large/training/owner.json").write_text(json.dumps(owner))
        call(monkeypatch, "status")
        assert table(capsys)["large"].startswith(f"train_model process {training.pid} RUNNING 40 of 100")
        assert call(monkeypatch, "cancel", "large") == 0
        assert training.wait(limits.seconds(10)) == 0
        assert "large: ended without saving; its last checkpoint stays." in capsys.readouterr().out
    finally:
        training.send_signal(signal.SIGKILL)
        training.wait()
