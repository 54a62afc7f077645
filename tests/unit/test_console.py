"""What the console shows of a workflow, from Snakemake's records, the logs of its jobs and the journals of trainings."""

import io
import json
import logging
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from snakemake.logging import LoggerManager
from snakemake.persistence import ParamsChange
from snakemake.settings.enums import Quietness
from snakemake.settings.types import OutputSettings
from snakemake_interface_logger_plugins.settings import LogHandlerSettingsBase

from snakemake_logger_plugin_snaketrain import LogHandler, console_of, running_jobs
from snakemake_logger_plugin_snaketrain.console import Console, Display
from snakemake_logger_plugin_snaketrain.messages import FAILED, INTERRUPTED_AGAIN, plain_error, short_reason, with_changes

STATS = {"prepare_data": 1, "train_model": 2, "all": 1, "total": 4}
TRACEBACK = 'Traceback (most recent call last):\n  File "own.py", line 1, in step\n    x\nValueError: no such wheel'


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def stream():
    return io.StringIO()


@pytest.fixture
def console(stream, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stderr", stream)
    return Console(OutputSettings(), None)


def report(console: Console, event: str | None, message: str = "", level: int = logging.INFO, **fields) -> None:
    record = logging.LogRecord("snakemake", level, "", 0, message, (), None)
    vars(record).update(fields | ({"event": event} if event else {}))
    console.emit(record)


def begin(console: Console, number: int = 1, run: str = "wide", reason: str = "", stage: str = "train_model") -> Path:
    """The log of a job that begins."""
    log, output = f"logs/{stage}/{run}.log", f"results/runs/{run}/training/manifest.json"
    fields = {"jobid": number, "rule_name": stage, "wildcards": {"run": run}, "log": [log], "output": [output], "reason": reason}
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    report(console, "job_info", **fields)
    return Path(log)


def write(file: Path, *events: dict) -> None:
    with open(file, "a") as journal:
        journal.writelines(json.dumps(event) + "\n" for event in events)


def lines(stream: io.StringIO) -> list[str]:
    found = stream.getvalue().splitlines()
    stream.seek(0)
    stream.truncate()
    return found


def test_a_job_has_a_line_when_it_begins_and_one_when_it_ends(console, stream):
    report(console, "run_info", stats=STATS)
    report(console, "job_info", jobid=0, rule_name="all", wildcards={}, log=[], output=[], reason="")
    begin(console)
    report(console, "shellcmd", "python train_model.py")
    report(console, None, "Select jobs to execute...")
    report(console, "job_finished", job_id=1)
    report(console, "progress", done=1, total=4)
    report(console, "job_finished", job_id=0)
    assert lines(stream)[:1] == ["3 jobs: prepare_data 1, train_model 2"]


def test_the_lines_of_a_job(console, stream):
    report(console, "run_info", stats=STATS)
    before, now = (f"""'code: {{"own.py": "{seed}f", "a.b": "1"}}','train: {{"seed": {seed}, "text": "it\\'s; B"}}'""" for seed in (0, 1))
    begin(console, reason=f"Params have changed since last execution: before: {before} now: {now} ; Updated input files: a")
    report(console, "job_finished", job_id=1)
    assert lines(stream)[1:] == [
        "train_model        wide  (its input changed; code, train.seed changed)",
        "train_model        wide  done in 0:00  (1 of 3 jobs)",
    ]


@pytest.mark.parametrize(
    ("before", "now", "names"),
    [
        ({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3}}, "train.b.c changed"),
        ({"a": "x'y\\"}, {"a": "x'y\\ now: z"}, "train.a changed"),
        ({}, {"a": None, "b": 0}, "train, train.b changed"),
        (None, {"a": {"x.y": 1}}, "train.a changed"),
    ],
)
def test_a_reason_names_the_settings_that_changed(before, now, names):
    before, now = (repr(f"train: {json.dumps(value)}") for value in (before, now))
    reason = f"Params have changed since last execution: {ParamsChange({before}, {now})}"
    assert short_reason(reason) == f"({names})"
    shown = with_changes(f"rule x:\n    reason: Code has changed; {reason}; Updated input files: a\n    threads: 1").splitlines()
    assert shown[1] == "    reason: Code has changed; Params have changed since last execution; Updated input files: a"
    assert [line.partition(":")[0].strip() for line in shown[2:-1]] == names.removesuffix(" changed").split(", ")
    assert all(" -> " in line for line in shown[2:-1]) and shown[-1] == "    threads: 1"


def test_params_of_other_workflows_are_no_error():
    reason = f"Params have changed since last execution: {ParamsChange({repr('code: 1'), '[5]', repr('a')}, {repr('code: 2'), '[6]'})}"
    assert short_reason(reason) == "(code changed)"


def test_a_log_that_is_removed_while_its_job_begins_is_no_error(console, stream, monkeypatch):
    """Snakemake removes the log of an earlier start in another thread, maybe between two looks at it."""
    stat = Path.stat
    removed = lambda path, **options: stat(path if path.suffix != ".log" else path / "removed", **options)  # noqa: E731
    monkeypatch.setattr(Path, "stat", removed)
    for look in ("is_file", "exists"):  # just before
        monkeypatch.setattr(Path, look, lambda path: path.suffix == ".log")
    begin(console)
    assert lines(stream) == ["train_model        wide"] and 1 in console.running


def test_a_submitted_job_has_its_number(console, stream, tmp_path):
    begin(console, 4)
    lines(stream)
    report(console, None, f"Job 4 has been submitted with SLURM jobid 41 (log: {tmp_path}/logs/slurm/41.log).")
    report(console, None, "SLURM run ID: 1f")
    assert lines(stream) == ["train_model        wide  SLURM job 41"]


def test_jobs_that_are_submitted_as_one_have_its_number(console, stream, tmp_path):
    log = f"{tmp_path}/logs/slurm/group_wide_evaluate_model_select_checkpoint_train_model/41.log"
    report(console, None, f"Job 8f3e5a0c-1b2d has been submitted with SLURM jobid 41 (log: {log}).")
    assert lines(stream) == ["train_model wide  SLURM job 41"]


def test_a_warning_in_a_log_is_repeated_once(console, stream):
    log = begin(console)
    log.write_text("command\nwarning: 12 rows are empty\nwarning: unfini")
    console._look(console.running[1])
    with open(log, "a") as file:
        file.write("shed\n2026-11-23 06:00:00,123 warning: 12 rows are empty\n2026-11-23 06:00:00,123 warning: a loss is not finite\n")
    console._look(console.running[1])
    assert lines(stream)[1:] == [
        f"train_model        wide  warning: {what}" for what in ("12 rows are empty", "unfinished", "a loss is not finite")
    ]


def test_where_a_training_is(console, stream, monkeypatch):
    journal = Path("results/runs/wide/training/journal.jsonl")
    journal.parent.mkdir(parents=True)
    write(journal, {"event": "train", "step": 90, "metrics": {"loss": 9.0}})  # an earlier training's
    begin(console)
    job = console.running[1]
    console._look(job)
    assert not job.has_progress and job.live_line == "train_model        wide  0:00"
    write(
        journal,
        {"event": "attempt", "attempt": 2, "resume_step": 40, "steps": 100},
        {"event": "train", "step": 50, "metrics": {"loss": 0.5}},
    )
    console._look(job)
    assert job.live_line == "wide  50/100  50 %  loss 0.500" and job.due_line() is None, "too early for a line"
    monkeypatch.setattr(running_jobs, "LINE_SECONDS", 0.0)
    assert (job.due_line(), job.due_line()) == ("wide  50/100  50 %  loss 0.500", None), "nothing new"
    write(journal, {"event": "end", "status": "FINISHED", "step": 50, "why": "f1 has not improved in 2 evaluations"})
    report(console, "job_finished", job_id=1)
    assert lines(stream)[1:] == [
        "wide  resumes after step 40",
        "wide  ended at step 50: f1 has not improved in 2 evaluations",
        "train_model        wide  done in 0:00  50/100  50 %  loss 0.500  (1 of 0 jobs)",
    ]


def test_a_killed_training_is_told_where_and_perhaps_why(console, stream):
    log, journal = begin(console), Path("results/runs/wide/training/journal.jsonl")
    write(
        journal,
        {"event": "attempt", "attempt": 1, "resume_step": 0, "steps": 100},
        {"event": "train", "step": 90, "metrics": {"loss": 0.5}},
    )
    log.write_text("python train_model.py\nkilled by SIGKILL\n")
    report(console, "job_error", jobid=1, rule_msg=None, log=[str(log)])
    assert lines(stream)[1] == "train_model        wide  killed by SIGKILL, after step 90, perhaps for memory; the same command resumes it"


def test_the_last_live_line_is_about_all_jobs(console, monkeypatch):
    """Of five trainings one is done, one is half done after ten seconds, one waits in the queue of a cluster."""
    monkeypatch.setattr(console.display, "is_live", True)
    report(console, "run_info", stats={"train_model": 5, "select_checkpoint": 5, "compare_runs": 1, "all": 1, "total": 12})
    console.count_jobs = lambda: 11
    name = "learning_rate=1e-5-weight_decay=0.01-seed=0"
    for number, run in enumerate(("first", name, "waiting")):
        begin(console, number, run=run)
    console.running[0].started -= 20
    report(console, "job_finished", job_id=0)
    half = {"event": "train", "step": 50, "metrics": {"loss": 0.5}, "spent": {"steps": 10.0, "data_wait": 0.0}}
    write(Path(f"results/runs/{name}/training/journal.jsonl"), {"event": "attempt", "attempt": 1, "resume_step": 0, "steps": 100}, half)
    Path(f"logs/train_model/{name}.log").write_text("command\n")
    for job in console.running.values():
        console._look(job)
    *_, last = shown = console._live_lines()
    assert shown[0] == "learning_rate=1…cay=0.01-seed=0  eta 0:10  50/100  50 %  loss 0.500"
    assert last == "1 of 11 jobs, 1 running, 1 waiting", "nothing is known yet of the time that a selection takes"
    begin(console, 3, run="first", stage="select_checkpoint")
    console.running[3].started -= 5
    report(console, "job_finished", job_id=3)
    # what the running one needs, three more of 20 seconds, and four selections of 5
    assert console._live_lines()[-1] == "2 of 11 jobs, 1 running, 1 waiting, eta 1:30"
    console.count_jobs = lambda: 12
    assert "eta" not in console._live_lines()[-1], "a search has added a job"


def test_a_journal_that_replaces_a_shorter_one_is_read_from_its_begin(console, stream):
    """A training takes up an earlier one of as many steps as it needs, whose journal is longer than that of the one moved aside."""
    journal = Path("results/runs/wide/training/journal.jsonl")
    journal.parent.mkdir(parents=True)
    write(journal, {"event": "attempt", "attempt": 1, "resume_step": 0, "steps": 1, "metric": "f1"})
    begin(console)
    job = console.running[1]
    journal.parent.rename("superseded")
    journal.parent.mkdir()
    write(journal, *({"event": "train", "step": step, "metrics": {"loss": 0.5}} for step in (50, 102)))
    console._look(job)
    assert job.live_line == "wide  102/?  loss 0.500"
    write(journal, {"event": "attempt", "attempt": 1, "resume_step": 102, "steps": 102})
    console._look(job)
    assert job.progress.figures == "102/102  100 %"


def test_an_error_is_reported_once_with_its_traceback_and_log(console, stream):
    report(console, "run_info", stats=STATS)
    log = begin(console)
    log.write_text(
        f"python train_model.py\n2026-11-23 06:00:00,123 the training failed\n{TRACEBACK}\nE1122 19:12:58 x] failed (exitcode: 1)\n"
    )
    report(console, "job_error", jobid=1, rule_msg=None, log=[str(log)], shellcmd="python train_model.py", level=logging.ERROR)
    failed = "Command 'python train_model.py' returned non-zero exit status 1."
    report(console, "error", f'CalledProcessError in file "x.smk", line 3:\n{failed}', logging.ERROR)
    report(console, "error", f"WorkflowError:\n{FAILED}", logging.ERROR)
    first, *traceback, where, last = lines(stream)[2:]
    assert first == "train_model        wide  failed: ValueError: no such wheel"
    assert traceback == [f"  {line}" for line in TRACEBACK.splitlines()] and where == "  log: logs/train_model/wide.log"
    assert last == "3 of 3 jobs did not finish: 1 failed, 2 not started. The same command tries again; what is finished is kept."


def test_the_jobs_that_did_not_finish_are_counted_by_what_happened_to_them(console, stream):
    """Of nine jobs one is done, one failed, one finished at its second try, one still ran at a Ctrl-C, and one without a log, of a rule of the user's, is done."""
    report(console, "run_info", stats={"train_model": 7, "prepare_data": 1, "own": 1, "all": 1, "total": 10})
    for number in (1, 2, 3, 4):
        begin(console, number, run=f"run-{number}")
    report(console, "job_info", jobid=5, rule_name="own", wildcards={}, log=[], output=[], reason="")
    for number in (1, 5):
        report(console, "job_finished", job_id=number)
    for number in (2, 3):
        report(console, "job_error", jobid=number, rule_msg=None, log=["its.log"])
    begin(console, 3, run="run-3")
    report(console, "job_finished", job_id=3)
    lines(stream)
    report(console, "error", FAILED, logging.ERROR)
    (last,) = lines(stream)
    assert last.startswith("6 of 9 jobs did not finish: 1 failed, 1 stopped, 4 not started. ")


def test_a_search_adds_jobs_when_it_has_decided(console, stream):
    report(console, "run_info", stats=STATS)
    console.count_jobs = lambda: 8
    begin(console)
    report(console, "job_finished", job_id=1)
    assert lines(stream)[-1].endswith("(1 of 8 jobs)")


def test_a_job_without_a_log_failed_as_the_executor_says(console, stream):
    log = begin(console)
    log.write_text("python train_model.py\nOldError: of an earlier start\n")
    begin(console)
    console.running[1].started = time.time() + 3600
    report(console, "job_error", jobid=1, rule_msg="SLURM job 41 was cancelled.", log=[str(log), "slurm/41.log"])
    assert lines(stream)[2:] == [
        "train_model        wide  failed: SLURM job 41 was cancelled.",
        "  log: logs/train_model/wide.log, slurm/41.log",
    ]


def test_jobs_that_ctrl_c_ends_have_no_traceback(console, stream, capsys):
    """One while its stage was imported, one before it had a log; and Snakemake's own, if Ctrl-C comes again."""
    imported = begin(console, 1)
    imported.write_text("command\nTraceback (most recent call last):\n  File 'x', line 1\nKeyboardInterrupt\n")
    begin(console, 2, "small")
    report(console, None, "Terminating processes on user request, this might take some time.", logging.WARNING)
    for number in (1, 2):
        report(console, "job_error", jobid=number, log=["the.log"], rule_msg="")
    report(console, "error", msg="Command 'python stage.py' died with <Signals.SIGINT: 2>.")
    report(console, "error", msg=FAILED)
    *_, first, _, second, _, last = lines(stream)
    assert first == "train_model        wide  stopped by SIGINT" and second == "train_model        small  stopped by SIGINT"
    assert "2 stopped" in last and "failed" not in last
    console.close()
    again = "Traceback (most recent call last):\n\n  File 'x'\n\nKeyboardInterrupt\n\n\nDuring handling\n\nRuntimeError: running\n\n"
    alone = logging.Logger("without handlers")
    try:
        for message in (again, "another error"):
            alone.error(message)
    finally:
        logging.lastResort.filters.clear()
    assert capsys.readouterr().err.splitlines() == [INTERRUPTED_AGAIN, "another error"]


def test_the_last_job_of_a_group_is_the_one_that_failed(console, stream):
    for number, stage in enumerate(("train_model", "evaluate_model", "select_checkpoint")):
        log = begin(console, number, stage=stage)
        if stage != "evaluate_model":
            log.write_text(f"python {stage}.py\n{stage} ends\n")
        time.sleep(0.01)
    lines(stream)
    report(console, "group_error", job_error_info=[{"jobid": number} for number in range(3)])
    for number in range(3):
        report(console, "job_error", jobid=number, rule_msg=None, log=["its.log"])
    assert lines(stream) == ["select_checkpoint  wide  failed: select_checkpoint ends", "  log: its.log"]


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ('WorkflowError in file "/x/Snakefile", line 39:\nThe configuration has 1 problem.\n  - a: b\n  File "/x/Snakefile", line 39, in <module>',
         "The configuration has 1 problem.\n  - a: b"),
        ('InputFunctionException in rule train_model in file "x.smk", line 4:\nError:\n  LookupError: no run \'smal\'\nWildcards:\n  run=smal\nTraceback:\n  File "x"',
         "no run 'smal'"),
        ("MissingRuleException:\nNo rule to produce smal (if you use input functions make sure that they don't raise unexpected exceptions).",
         "No rule makes smal. Ask for a file, such as results/runs/<run>/selection/manifest.json, or for a rule such as `all`."),
    ],
)  # fmt: skip
def test_an_error_of_the_workflow_is_shown_without_its_stack(text, plain):
    assert plain_error(text) == plain


def test_a_dry_run_is_shown_by_snakemake_itself(stream, monkeypatch):
    monkeypatch.setattr(sys, "stdout", stream)
    console = Console(OutputSettings(dryrun=True, stdout=True), None)
    report(console, "job_info", "Rule: train_model", jobid=1)
    report(console, None, "This was a dry-run")
    assert lines(stream) == ["Rule: train_model", "This was a dry-run"]


class Dag(list):
    """Of jobs that all have to run."""

    def needrun_jobs(self):
        return self


@pytest.fixture
def started(stream, monkeypatch):
    """Snakemake's manager of a logger for which the plug-in was asked, and what a workflow knows of it."""
    managers = []

    def start(**settings) -> SimpleNamespace:
        monkeypatch.setattr(sys, "stderr", stream)
        asked = OutputSettings(log_handler_settings={"snaketrain": LogHandlerSettingsBase()}, **settings)
        manager = LoggerManager(logging.getLogger(f"snakemake-{len(managers)}"), asked)
        managers.append(manager)
        dag = Dag(SimpleNamespace(rule=SimpleNamespace(name=rule)) for rule in ("all", "prepare_data", "train_model", "train_model"))
        return SimpleNamespace(dag=dag, logger_manager=manager)

    yield start
    for manager in managers:
        manager.stop()


def test_snakemake_finds_it_and_it_has_shown_all_events_when_it_stops(started, stream):
    workflow = started()
    logger, console = workflow.logger_manager.logger, console_of(workflow.logger_manager)
    assert isinstance(console, LogHandler) and [handler.name for handler in logger.handlers] == [None], "only a queue"
    console.start(workflow)
    log = {"event": "job_info", "rule_name": "own", "wildcards": {}, "output": [], "log": ["its.log"], "reason": ""}
    for number in range(300):
        logger.info("rule own:", extra=log | {"jobid": number})
    workflow.dag.append(SimpleNamespace(rule=SimpleNamespace(name="train_model")))  # a search has decided
    logger.info("Finished jobid: 299", extra={"event": "job_finished", "job_id": 299})
    console.stop()
    *others, last = lines(stream)
    assert len(others) == 300 and last.endswith("(1 of 4 jobs)"), "all but the rule `all`"


@pytest.mark.parametrize(
    ("stream", "term", "live"), [(Terminal(), "xterm", True), (Terminal(), "dumb", False), (io.StringIO(), "xterm", False)]
)
def test_only_a_terminal_that_can_move_its_cursor_has_live_lines(monkeypatch, stream, term, live):
    monkeypatch.setenv("TERM", term)
    display = Display(stream)
    display.show(["12 of 40 jobs"])
    display.write("a line\n")
    assert stream.getvalue() == ("12 of 40 jobs\n\x1b[1F\x1b[Ja line\n12 of 40 jobs\n" if live else "a line\n")


def test_quiet_leaves_out_jobs(started, stream):
    workflow = started(quiet={Quietness.RULES})
    workflow.logger_manager.logger.info("rule own:", extra={"event": "job_info"})
    workflow.logger_manager.stop()
    assert lines(stream) == []


@pytest.mark.parametrize("asked", [{"verbose": True}, {"debug_dag": True}])
def test_verbose_snakemake_has_its_own_console(started, stream, asked):
    manager = started(**asked).logger_manager
    assert console_of(manager) is None and manager.logger.handlers[-1].name == "DefaultStreamHandler"
    manager.logger.info("Building DAG of jobs...")
    manager.stop()
    assert lines(stream) == ["Building DAG of jobs..."]


def test_another_console_is_left_alone(started):
    manager = started(skip_plugin_handlers=True).logger_manager
    assert console_of(manager) is None and manager.logger.handlers[-1].name == "DefaultStreamHandler"


def test_live_lines_stay_below_other_output_and_are_cut(monkeypatch):
    monkeypatch.setenv("COLUMNS", "10")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    display = Display(stream)
    display.show(["one line that is long", "two"])
    print("a message", file=display)
    display.show([])
    assert stream.getvalue() == "one line \ntwo\n\x1b[2F\x1b[Ja message\none line \ntwo\n\x1b[2F\x1b[J"


def test_more_live_lines_than_the_terminal_has_rows(monkeypatch):
    monkeypatch.setenv("LINES", "8")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    Display(stream).show([str(number) for number in range(6)])
    assert stream.getvalue() == "0\n1\n2\n... and 3 more\n"


def test_a_file_has_no_live_lines(stream):
    display = Display(stream)
    display.show(["one"])
    print("a message", file=display)
    assert stream.getvalue() == "a message\n"


def test_hundreds_of_jobs_are_looked_at_less_often(console, monkeypatch):
    """Each look asks the file system for each of them: 500 that waited in a queue took 0.8 % of a core."""
    begin(console)
    console.running |= dict.fromkeys(range(2, 501), console.running[1])
    waited = []
    monkeypatch.setattr(console, "_over", SimpleNamespace(wait=lambda seconds: waited.append(seconds) or True))
    console._follow()
    assert waited == [10]
