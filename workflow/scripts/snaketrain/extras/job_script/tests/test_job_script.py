"""The script for sbatch: its options, once each; its command, which receives all texts literally; and what becomes of it."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from snaketrain.extras.job_script import submitting, training
from snaketrain.extras.job_script.sbatch_script import options_of, script_of
from snaketrain.orchestration import launching, rule_values
from snaketrain.orchestration.pipeline import Pipeline

TEXT = """-it's "$(touch PWNED)" `touch PWNED` {run} \\n ü & ; | > < * ? [a] ! # ~ $HOME\n--output x"""
LINE = TEXT.replace("\n", " ")
STUB = """#!{python}
import json, os, sys
print(json.dumps({{"words": sys.argv[1:], "text": os.environ.get("TEXT")}}), flush=True)
if sys.argv[0].endswith("srun"):
    os.execvp("env", sys.argv[sys.argv.index("env"):])
"""
SETTINGS = SimpleNamespace(logdir="logs/slurm", no_account=False, requeue=True, qos=None, reservation=None)


class Resources(dict):
    __getattr__ = dict.__getitem__


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A job as Snakemake makes it, and the pipeline, by the settings of `compute`."""
    (folder := tmp_path / LINE.replace("/", "")).mkdir()
    monkeypatch.chdir(folder)

    def make(**compute) -> tuple[SimpleNamespace, Pipeline]:
        data = {"train": {"path": "raw.csv"}, "tokenizer": {"path": "tokenizer"}}
        train = {"tracking": {"notes": TEXT}, "select": {"metric": TEXT, "mode": "max"}}
        pipeline = Pipeline({"data": data, "compute": compute} | train, reads_files=False)
        stage = pipeline.stages["train_model"]
        command = f"log {launching.launch(stage.compute('default'), False)} {shlex.quote(str(stage.script))} --output x/manifest.json "
        asked = launching.asked(stage.compute("default"), saves=True) | {"slurm_account": "mine", "slurm_partition": "slow"}
        resources = Resources({name: value for name, value in asked.items() if value is not None})
        job = SimpleNamespace(
            name="train_model", rule=SimpleNamespace(name="train_model"), wildcards=["default"], resources=resources,
            threads=stage.compute("default").threads, shellcmd=command + rule_values.training_options(pipeline.runs["default"]),
        )  # fmt: skip
        return job, pipeline

    return make


def directives(script: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH")]


def test_of_an_option_that_is_given_twice_the_last_counts():
    found = options_of("sbatch --parsable -t 60 --mem 20 --ntasks-per-node=2 -N2 -Ca --exclusive --ntasks-per-node=8 -C 'b c' -t5")
    assert found == {"--time": "5", "--mem": "20", "--ntasks-per-node": "8", "--nodes": "2", "--constraint": "b c", "--exclusive": None}


def test_each_option_is_there_once(made):
    script = script_of(
        *insert(made(nodes="2+1", threads=4, partition="fast", sbatch="-q long --exclusive", gpus=2, minutes=30)),
        before=["results/data/x/manifest.json"],
    )
    found = directives(script)
    assert {"--partition=fast", "--account=mine", "--qos=long", "--exclusive", "--nodes=2", "--time=30", "--gres=gpu:2"} <= set(found)
    assert {"--ntasks-per-node=4", "--cpus-per-task=1", "--signal=USR1@120", "--open-mode=append", "--requeue"} <= set(found)
    assert "--output=logs/slurm/rule_train_model/default/%j.log" in found
    names = [option.partition("=")[0] for option in found]
    assert len(names) == len(set(names)) and "--cpus-per-task=4" in script.partition("srun ")[2]
    assert "# These must be there before:\n#     results/data/x/manifest.json\n" in script


def insert(made: tuple[SimpleNamespace, Pipeline]) -> tuple[SimpleNamespace, SimpleNamespace, Pipeline]:
    job, pipeline = made
    return job, SETTINGS, pipeline


@pytest.mark.parametrize("setup", ["", "export TEXT"])
def test_all_texts_are_received_literally(made, tmp_path, monkeypatch, setup):
    job, pipeline = made(environment={"TEXT": TEXT}, setup=setup, sbatch=f"--constraint={shlex.quote(LINE)}")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    for name in ("srun", "scontrol", "python"):
        (tmp_path / name).write_text(STUB.format(python=os.path.realpath("/proc/self/exe")))
        (tmp_path / name).chmod(0o755)
    script = script_of(job, SETTINGS, pipeline)
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "a,b"}
    done = subprocess.run(["bash", "-c", script], env=variables, capture_output=True, text=True, check=True)
    assert not list(tmp_path.rglob("PWNED"))
    of_srun, of_python = map(json.loads, done.stdout.splitlines())
    assert of_srun["words"][:2] == ["--nodes=2", "--ntasks=2"] and of_python["text"] == TEXT
    at = of_python["words"].index(str(pipeline.stages["train_model"].script))
    assert f"--notes={TEXT}" in of_python["words"][at:] and f"--keep-best-by={TEXT}" in of_python["words"][at:]
    assert {"--rdzv-backend=c10d", "--rdzv-id=7", "--nnodes=2", "--max-restarts=0"} <= set(of_python["words"][:at])
    quoted = LINE.replace("\\", "\\\\").replace('"', '\\"')
    assert f'--constraint="{quoted}"' in directives(script), "as sbatch reads it"


def test_a_training_that_is_submitted_leaves_its_script_which_the_training_takes(made, capsys, monkeypatch):
    job, pipeline = made()
    monkeypatch.setattr(submitting, "known", [(None, pipeline)])
    submitting.before_submission(SimpleNamespace(jobs=[job, SimpleNamespace(rule=SimpleNamespace(name="evaluate_model"))]), SETTINGS)
    attempt = SimpleNamespace(
        job=SimpleNamespace(given=pipeline.stages["train_model"].planned("default"), folder=Path("training")),
        arguments=SimpleNamespace(run_name="default"),
    )
    assert training.before_attempt(attempt) == []
    assert Path("training/job.sh").read_text() == script_of(job, SETTINGS, pipeline)
    job.resources["slurm_extra"] += " --constraint='a\nb'"
    submitting.before_submission(job, SETTINGS)
    assert "warning: no job.sh for default: --constraint: a line break cannot be written" in capsys.readouterr().err


def test_mpiexec_starts_the_processes_where_the_workflow_has_it_do_so(made):
    script = script_of(*insert(made(launcher="env", processes=2, launch_command="mpiexec -n $N")))
    assert "mpiexec -n $N" in script and "torchrun" not in script and "srun" not in script
