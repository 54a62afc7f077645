"""Nothing in a setting or a path is executed by a shell: commands run in one, with stubs that report their arguments."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import limits
import pytest

import keep_log
from snaketrain.config.errors import ConfigurationError
from snaketrain.config.files import read_configuration
from snaketrain.orchestration import launching, rule_values
from snaketrain.orchestration.code_digest import SCRIPTS
from snaketrain.orchestration.command_line import by_section
from snaketrain.orchestration.names import plain_name, source_name
from snaketrain.orchestration.pipeline import Pipeline
from snaketrain.orchestration.unfinished import comparison_without
from snaketrain.runtime import processes
from snaketrain.runtime.processes import MemoryUse
from snaketrain.runtime.stages import JobSettings

TEXT = """-it's "$(touch PWNED)" `touch PWNED` {run} \\n ü & ; | > < * ? [a] ! # ~ $HOME\n--output x"""
STUB = "import json, os, sys\nsys.stdout.write(json.dumps({'words': sys.argv[1:], 'ranks': os.environ.get('RANK')}) + '\\n')\n"


@pytest.fixture
def pipeline(tmp_path, monkeypatch):
    """All legal texts."""
    monkeypatch.chdir(tmp_path)
    data = {"train": {"path": f"{TEXT}/raw.csv"}, "tokenizer": {"path": TEXT}, "text": TEXT, "labels": {TEXT: TEXT}, "where": {TEXT: TEXT}}
    return lambda **compute: Pipeline(
        {
            "data": data,
            "train": {"freeze": [TEXT]},
            "select": {"metric": TEXT, "mode": "max"},
            "tracking": {"experiment": TEXT, "notes": TEXT},
            "compute": compute,
        }
    )


@pytest.fixture
def script(tmp_path) -> str:
    """One that reports its arguments, in a folder with such a name."""
    (tmp_path / TEXT).mkdir()
    (tmp_path / TEXT / "stage.py").write_text(STUB)
    return shlex.quote(f"{tmp_path}/{TEXT}/stage.py")


def run(command: str, folder: Path) -> list[dict]:
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, timeout=limits.seconds(120))
    assert done.returncode == 0, done.stderr
    assert not list(folder.rglob("PWNED")) and not (folder / "x").exists()
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_a_training_receives_its_options_literally(pipeline, script, tmp_path):
    found = pipeline(threads=1)
    options = rule_values.training_options(found.runs["default"])
    (given,) = run(f"{launch(found)} {script} {options}", tmp_path)
    assert {f"--experiment={TEXT}", f"--notes={TEXT}", f"--keep-best-by={TEXT}"} <= set(given["words"])
    assert given["words"][-1] == f"--notes={TEXT}" and "--resume-changed" not in given["words"]


def launch(pipeline: Pipeline) -> str:
    return launching.launch(pipeline.stages["train_model"].compute("default"), pipeline.in_slurm_job)


def test_a_job_receives_the_settings_that_snakemake_compares(pipeline):
    found = pipeline(threads=1)
    for stage, name in (("fetch_data", next(iter(found.datasets))), ("train_model", "default"), ("compare_runs", "")):
        file = Path(found.stages[stage].settings_file(name, store=False))
        assert not file.exists(), "a dry run writes nothing"
        assert found.stages[stage].settings_file(name) == str(file)
        given = JobSettings.read(file)
        assert given == found.stages[stage].planned(name)


def test_a_command_may_be_longer_than_a_shell_accepts(tmp_path, script):
    """As with thousands of shards or runs: Snakemake puts it into a file."""
    shards = [f"results/data/words/shards/{number:05}-of-04000/manifest.json" for number in range(4000)]
    command = f"{launching.keep_log(show=False)} log {launching.python()} {script} --shards {' '.join(shards)}"
    job = f"from snakemake.shell import shell; command = {command!r}; shell('{{command}}')"
    subprocess.run([sys.executable, "-"], input=job, text=True, cwd=tmp_path, check=True)
    first, last = (tmp_path / "log").read_text().splitlines()[-2:]
    assert first.endswith(shards[-1]) and json.loads(last)["words"] == ["--shards", *shards]


def test_processes_of_torchrun_receive_their_arguments_literally(pipeline, script, tmp_path):
    words = ["--output", f"{TEXT}/manifest.json", TEXT]
    given = run(f"{launch(pipeline(threads=2, processes=2, device='cpu'))} {script} {shlex.join(words)}", tmp_path)
    assert sorted(each["ranks"] for each in given) == ["0", "1"]
    assert all(each["words"] == words for each in given)


def test_only_a_launch_command_is_shell_text(pipeline, script, tmp_path):
    found = pipeline(threads=2, processes=2, launcher="env", launch_command="PROCESSES=$((1 + {processes}))")
    (given,) = run(f"{launch(found)} {script} {shlex.quote(TEXT)}", tmp_path)
    assert given["words"] == [TEXT]


def test_the_comparison_of_what_is_finished_is_given_why_others_are_not(pipeline, tmp_path):
    found = pipeline(threads=1)
    for each in ("default", "other"):
        evaluation = Path(found.manifest("evaluate_model", each))
        evaluation.parent.mkdir(parents=True)
        evaluation.touch()
    found.runs["other"] = found.runs["default"]
    words = comparison_without(found, {"other": f"train_model failed: {TEXT}"})
    assert words[words.index("--runs") + 1 :] == [
        "default", "--sets", "--decisions", "--unfinished", f"other: train_model failed: {TEXT}",
    ]  # fmt: skip
    assert words.index("logs/compare_runs.log") < words.index(str(SCRIPTS / "compare_runs.py"))


def test_on_a_cluster_the_log_of_the_job_has_all_output_too(tmp_path):
    assert run(f"{launching.keep_log(show=True)} log echo {{}}", tmp_path) == [{}]
    assert run(f"{launching.keep_log(show=False)} -a log echo {{}}", tmp_path) == []
    assert (tmp_path / "log").read_text() == "echo '{}'\n{}\n" * 2


@pytest.mark.parametrize(
    ("deed", "code", "said"),
    [
        ("kill -9 $$", 137, ["killed by SIGKILL"]),
        ("kill -SEGV $$", 139, ["killed by SIGSEGV"]),
        ("exit 130", 130, []),
        ("exit 3", 3, ["ended with exit code 3"]),
        ("exit 1", 1, []),
        ("exit 75", 75, []),
        ("exit 0", 0, []),
    ],
)
def test_a_log_says_how_a_job_ended_that_gave_no_reason_itself(tmp_path, deed, code, said):
    command = f"{launching.keep_log(show=False)} 'a log' bash -c 'echo begun; {deed}'"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
    assert (tmp_path / "a log").read_text().splitlines()[2:] == said


def test_a_log_has_what_the_kernel_killed_for_memory_meanwhile(monkeypatch):
    uses = iter([MemoryUse(0, False), MemoryUse(1, False, 100, 99)])
    monkeypatch.setattr(processes, "memory_use", lambda: next(uses))
    monkeypatch.setattr(keep_log, "memory_use", processes.memory_use)
    monkeypatch.setattr(keep_log, "lines_of_stage", lambda source: iter(["a line\n"]))
    line, killed = keep_log.lines(0)
    assert line == "a line\n" and killed.startswith("the kernel killed 1 process of this job on ")
    assert killed.endswith(" for memory (limit 100 MB, peak 99 MB)\n")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("tok$(touch PWNED)", "tok-touch-PWNED"),
        ("my model (v2)", "my-model-v2"),
        ("--output", "output"),
        ("..", "files"),
        ("модель", "files"),
        ("raw_*.jsonl", "raw-all.jsonl"),
        ("x" * 300, "x" * 40),
    ],
)
def test_names_use_a_safe_alphabet(text, name):
    assert plain_name(text) == name


def test_digests_distinguish_names_that_look_the_same(pipeline):
    from snaketrain.config.schema import Source

    assert source_name(Source(path="my model")) != source_name(Source(path="my_model"))


def test_a_folder_in_which_snakemake_cannot_work_is_refused():
    launching.check_folder(TEXT.replace("{run}", ""))
    with pytest.raises(ConfigurationError, match=r"/a\{b\}: .*braces"):
        launching.check_folder("/a{b}")


@pytest.mark.parametrize(
    ("given", "means"),
    [
        ("train.seed=1", {"train": {"seed": 1}}),
        ("tracking.notes=good, I [think]", {"tracking": {"notes": "good, I [think]"}}),
        ("train.freeze=[a, b]", {"train": {"freeze": ["a", "b"]}}),
        ('tracking.notes="a, b"', {"tracking": {"notes": "a, b"}}),
        ("train.schedule.arguments={power: 2, end: 0}", {"train": {"schedule": {"arguments": {"power": 2, "end": 0}}}}),
    ],
)
def test_a_name_with_dots_after_config(given, means):
    words = by_section(["--cores", "a.b=c", "--config", given, "-n"])
    assert words[:3] == ["--cores", "a.b=c", "--config"] and words[4:] == ["-n"]
    assert read_configuration([], [words[3]]) == means
