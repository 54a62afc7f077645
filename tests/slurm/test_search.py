"""A search on the cluster: the runs of a rung are parallel jobs, which survive a killed workflow and are adopted by the next one."""

import json
import signal
import subprocess

from pipeline.workspace import read_configuration, write_configuration

from slurm import lab
from snaketrain.runtime.journal import read_events

RATES = [1e-3, 1e-2, 1e-4, 1e-5]
RUNG, LAST = 12, 40  # steps


def test_a_killed_search_continues_with_its_jobs(cluster, tmp_path):
    folder = lab.make(tmp_path / "search", pace=0.3, steps=LAST, nodes="1", processes=1, threads=1)
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
