"""Nothing in a setting or a path is executed by a shell: commands run in one, with stubs that report their arguments."""

import json
import shlex
import subprocess
from pathlib import Path

import limits
import pytest

import keep_log
from snaketrain.config.errors import ConfigurationError
from snaketrain.orchestration import launching, stage_commands
from snaketrain.orchestration.names import plain_name, source_name
from snaketrain.orchestration.pipeline import Pipeline
from snaketrain.runtime import memory_kill
from snaketrain.runtime.job_settings import JobSettings
from snaketrain.runtime.memory_kill import MemoryUse

TEXT = """-it's "$(touch PWNED)" `touch PWNED` {run} \\n ü & ; | > < * ? [a] ! # ~ $HOME\n--output x"""
STUB = "import json, os, sys\nsys.stdout.write(json.dumps({'words': sys.argv[1:], 'ranks': os.environ.get('RANK')}) + '\\n')\n"
STAGES = (
    "fetch_model",
    "fetch_data",
    "fetch_input",
    "prepare_data",
    "prepare_set",
    "train_model",
    "select_checkpoint",
    "evaluate_model",
    "evaluate_set",
    "predict_inputs",
    "compare_runs",
)


@pytest.fixture
def pipeline(tmp_path, monkeypatch):
    """All legal texts, and scripts in a folder with such a name."""
    monkeypatch.chdir(tmp_path)
    scripts = tmp_path / TEXT / "scripts"
    scripts.mkdir(parents=True)
    for stage in STAGES:
        (scripts / f"{stage}.py").write_text(STUB)
    monkeypatch.setattr(stage_commands, "SCRIPTS", scripts)
    data = {"train": {"path": f"{TEXT}/raw.csv"}, "tokenizer": {"path": TEXT}, "text": TEXT, "labels": {TEXT: TEXT}, "where": {TEXT: TEXT}}
    return lambda **compute: Pipeline(
        {
            "data": data,
            "train": {"freeze": [TEXT]},
            "select": {"metric": TEXT, "mode": "max"},
            "predict": {"new": {"path": TEXT, "id": TEXT}},
            "evaluation_sets": {"more": {"path": TEXT, "where": {TEXT: TEXT}}},
            "tracking": {"experiment": TEXT, "notes": TEXT},
            "compute": compute,
        }
    )


def run(command: str, folder: Path) -> list[dict]:
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, timeout=limits.seconds(120))
    assert done.returncode == 0, done.stderr
    assert not list(folder.rglob("PWNED")) and not (folder / "x").exists()
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_every_script_receives_its_arguments_literally(pipeline, tmp_path):
    found = pipeline(threads=1)
    names = {"fetch_model": next(iter(found.models)), "fetch_input": next(iter(found.inputs)), "compare_runs": ""} | dict.fromkeys(
        ("fetch_data", "prepare_data"), next(iter(found.datasets))
    )
    names |= {"prepare_set": next(iter(found.sets.prepared)), "evaluate_set": "default/more"}
    for stage in STAGES:
        job = names.get(stage, "default"), f"{TEXT}/manifest.json", {"data": TEXT, "model": [TEXT], "initial": []}
        (given,) = run(stage_commands.shell_command(found, stage, *job), tmp_path)
        assert given["words"] == found.stages[stage].words(*job)
        assert given["words"][:2] == ["--output", f"{TEXT}/manifest.json"] and f"--data={TEXT}" in given["words"]
        assert given["words"][2] == "--settings" and not Path(given["words"][3]).exists()  # which only exists if the text was executed
        assert "--initial" not in given["words"]


def test_a_job_receives_the_settings_that_snakemake_compares(pipeline, tmp_path):
    found = pipeline(threads=1)
    for stage, name in (("fetch_data", next(iter(found.datasets))), ("train_model", "default"), ("compare_runs", "")):
        for executing in (False, True):
            job = found, stage, lambda executing=executing: executing, [name] if name else [], {}, [f"{TEXT}/manifest.json"], 1
            words = shlex.split(stage_commands.stage_command(*job))
            file = Path(words[words.index("--settings") + 1].rstrip(")"))
            assert file.exists() == executing, "a dry run writes nothing"
        given = JobSettings.read(file)
        assert (given.stage, [*given.settings, *given.code]) == (stage, found.strings(stage, name))


def test_a_command_may_be_longer_than_a_shell_accepts(pipeline, tmp_path):
    """As with thousands of shards or runs."""
    found, shards = pipeline(threads=1), [f"results/data/{TEXT}/shards/{number:05}-of-04000/manifest.json" for number in range(4000)]
    job = [next(iter(found.datasets))], {"shards": shards}, [f"{TEXT}/manifest.json"], 1
    command = stage_commands.stage_command(found, "prepare_data", lambda: True, *job)
    run(f"{command} log", tmp_path)
    first, *_, last = (tmp_path / "log").read_text().splitlines()
    assert first.startswith(". .snakemake/snaketrain-settings/prepare_data/"), "which can be run again"
    words = json.loads(last)["words"]
    assert words[words.index("--shards") + 1 :] == shards
    evaluated = {f"run-{number}-{'x' * 50}": "train_model failed: " + "y" * 50 for number in range(2000)}
    assert run(stage_commands.comparison_without(found, evaluated), tmp_path) == []
    assert json.loads((tmp_path / "logs/compare_runs.log").read_text().splitlines()[-1])["words"][-1].startswith("run-1999-")


def test_processes_of_torchrun_receive_their_arguments_literally(pipeline, tmp_path):
    found, job = pipeline(threads=2, processes=2, device="cpu"), ("default", f"{TEXT}/manifest.json", {})
    given = run(stage_commands.shell_command(found, "train_model", *job), tmp_path)
    assert sorted(each["ranks"] for each in given) == ["0", "1"]
    assert all(each["words"] == found.stages["train_model"].words(*job) for each in given)


def test_only_a_launch_command_is_shell_text(pipeline, tmp_path):
    found = pipeline(threads=2, processes=2, launcher="env", launch_command="PROCESSES=$((1 + {processes}))")
    command = stage_commands.shell_command(found, "evaluate_model", "default", "manifest.json", {})
    (given,) = run(command, tmp_path)
    assert given["words"] == found.stages["evaluate_model"].words("default", "manifest.json", {})


def test_the_comparison_of_what_is_finished_is_logged_with_its_command(pipeline, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = pipeline(threads=1)
    for each in ("default", "other"):
        evaluation = Path(found.manifest("evaluate_model", each))
        evaluation.parent.mkdir(parents=True)
        evaluation.touch()
    found.runs["other"] = found.runs["default"]
    assert run(stage_commands.comparison_without(found, {"other": f"train_model failed: {TEXT}"}), tmp_path) == [], "only its log has it"
    log = (tmp_path / "logs/compare_runs.log").read_text()
    words = json.loads(log.splitlines()[-1])["words"]
    assert words[words.index("--runs") + 1 : words.index("--unfinished") + 2] == [
        "default",
        "--sets",
        "default/more",
        "--unfinished",
        f"other: train_model failed: {TEXT}",
    ]
    assert "compare_runs.py" in log.split(" --output")[0]


def test_on_a_cluster_the_log_of_the_job_has_all_output_too(pipeline, tmp_path):
    assert run(f"{stage_commands.logged('echo {}', show=True)} log", tmp_path) == [{}]
    assert run(f"{stage_commands.logged('echo {}', show=False)} log", tmp_path) == []


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
    command = stage_commands.logged(f"bash -c 'echo begun; {deed}'", show=False)
    command = f"set -euo pipefail; {command} 'a log'"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
    assert (tmp_path / "a log").read_text().splitlines()[2:] == said


def test_a_log_has_what_the_kernel_killed_for_memory_meanwhile(monkeypatch):
    uses = iter([MemoryUse(0, False), MemoryUse(1, False, 100, 99)])
    monkeypatch.setattr(memory_kill, "memory_use", lambda: next(uses))
    monkeypatch.setattr(keep_log, "memory_use", memory_kill.memory_use)
    monkeypatch.setattr(keep_log, "lines_of_stage", lambda: iter(["a line\n"]))
    line, killed = keep_log.lines()
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
