"""Searches and trunks on the cluster: runs of a rung are parallel jobs, which survive a killed workflow; branches wait for their trunk."""

import json
import signal
import subprocess
from pathlib import Path

import pytest
from pipeline.workspace import read_configuration, write_configuration

from slurm import lab
from snaketrain.runtime.journal import read_events

RATES = [1e-3, 1e-2, 1e-4, 1e-5]
RUNG, LAST = 12, 40  # steps


@pytest.mark.slow
def test_a_killed_search_continues_with_its_jobs(cluster, tmp_path):
    folder = lab.make(tmp_path / "search", pace=0.3, steps=LAST, nodes="1", threads=1)
    config = read_configuration(folder) | {"runs": None, "sweeps": {"rate": {"train.learning_rate": RATES}}}
    write_configuration(folder, config | {"search": {"rate": {"rungs": [0.3], "keep": 0.25, "keep_tied": 0.25}}})
    journals = [folder / f"results/runs/rate-learning_rate={rate}/training/journal.jsonl" for rate in RATES]
    killed = lab.Workflow(folder)
    lab.until(lambda: all(journal.is_file() for journal in journals), "all runs train at the same time", workflow=killed)
    killed.signal(signal.SIGKILL)
    killed.end()
    subprocess.run([*killed.command, "--unlock"], cwd=folder, check=True, capture_output=True)
    lab.set_pace(folder, 0.0)
    lab.Workflow(folder).finish()

    decision = json.loads((folder / "results/searches/rate/1/decision.json").read_text())
    best = decision["ranking"][0]["run"]
    assert [each["continues"] for each in decision["ranking"]] == [True, False, False, False]
    for journal in journals:
        events, run = read_events(journal)[0], journal.parents[1].name
        begins = [event["resume_step"] for event in events if event["event"] == "attempt"]
        assert begins == ([0, RUNG] if run == best else [0]), run
        assert [event["step"] for event in events if event["event"] == "end"] == ([RUNG, LAST] if run == best else [RUNG])
    assert (folder / f"results/runs/{best}/evaluation/manifest.json").is_file()


@pytest.mark.slow
def test_a_trunk_and_sampled_runs_in_one_workflow_and_the_trunk_is_requeued(cluster, tmp_path):
    """Its branches wait for it, and the sampled runs train meanwhile."""
    folder = lab.make(tmp_path / "trunk", pace=0.3, steps=24, evaluate_every=6, nodes="1", threads=1)
    decays = {f"decay-{each}": {"train.schedule": {"use": "warmup_stable_decay", "arguments": {"decay": each}}} for each in (4, 6)}
    space = {"train.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}
    search = {"tuned": {"space": space, "trials": 2, "at_once": 2}}
    write_configuration(
        folder,
        read_configuration(folder) | {"runs": decays, "search": search, "select": {"metric": "loss"}, "shared_steps": {"at_least": 8}},
    )
    searching = lab.SampledSearch(folder)
    (trunk,) = lab.until(lambda: list(folder.glob("results/trunks/*/training")), "the trunk begins", workflow=searching)
    lab.until(lambda: steps_in(trunk) and max(steps_in(trunk)) > 7, "it is past its first checkpoint", workflow=searching)
    assert not list(folder.glob("results/runs/decay-*/training")), "its branches wait"
    sampled = [folder / f"results/runs/tuned-00{number}/training" for number in (0, 1)]
    lab.until(lambda: all(map(steps_in, sampled)), "both sampled runs train", workflow=searching)
    lab.slurm("scontrol", "requeue", json.loads((trunk / "owner.json").read_text())["job"])
    lab.until(lambda: len(resumed_at(trunk)) == 2, "the trunk is started again", workflow=searching)
    lab.set_pace(folder, 0.0)
    printed = searching.finish()

    assert resumed_at(trunk)[1] >= 6 and steps_in(trunk) >= {*range(1, 20)}
    for run in decays:
        assert resumed_at(folder / f"results/runs/{run}/training") == [19]
    values = [trial["value"] for trial in json.loads((folder / "results/searches/tuned/trials.json").read_text())["trials"]]
    assert len(values) == 2 and f"search tuned: the best of 2 runs is tuned-00{values.index(min(values))} (" in printed
    logs = sorted(path.parts[-3:-1] for path in folder.glob("logs/slurm/rule_train_*/*/*.log"))
    branches, of_search = (("rule_train_model", run) for run in decays), (("rule_train_model", path.parts[-2]) for path in sampled)
    assert logs == [*branches, *of_search, ("rule_train_trunk", trunk.parts[-2])], "a job each"


def steps_in(training: Path) -> set[int]:
    """Those that it took itself."""
    events = read_events(training / "journal.jsonl")[0]
    return {event["step"] for event in events if event["event"] == "train" and event["attempt"] > 0}


def resumed_at(training: Path) -> list[int]:
    return [event["resume_step"] for event in read_events(training / "journal.jsonl")[0] if event["event"] == "attempt"]
