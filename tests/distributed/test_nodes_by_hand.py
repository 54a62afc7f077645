"""A torchrun on each of two nodes, started by hand as docs/other_clusters.md says: network namespaces that share a folder."""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import limits
import pytest
from distributed import forking
from distributed.running import REPOSITORY, losses
from pipeline.workspace import snakemake

TARGET = "results/runs/small/training/manifest.json"
ON_TWO_NODES = """
set -eu
ip link add first type veth peer name second
number=0
for node in first second; do
    number=$((number + 1))
    ip netns add $node && ip link set $node netns $node
    ip -n $node address add 10.91.8.$number/24 dev $node && ip -n $node link set $node up && ip -n $node link set lo up
done
start() { GLOO_SOCKET_IFNAME=$node ip netns exec $node torchrun --node-rank=$rank --nnodes=2 --master-addr=10.91.8.1 --master-port=29500 "$@"; }
node=second rank=1 start "$@" & other=$!
node=first rank=0 start "$@"
wait $other
"""


def why_not() -> str | None:
    if not shutil.which("ip"):
        return "nodes on one machine need iproute2 (Debian and Ubuntu: apt install iproute2)"
    tried = subprocess.run(shlex.split("unshare --net ip link add first type veth peer name second"), capture_output=True, text=True)
    return f"nodes on one machine need the right to make networks: {tried.stderr.strip()}" if tried.returncode else None


def weights(folder: Path) -> dict[str, str]:
    files = sorted((folder / TARGET).parent.glob("checkpoints/*/model.safetensors"))
    return {file.parent.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_two_torchruns_train_the_same_bits_and_the_workflow_goes_on(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if reason := why_not():
        pytest.skip(reason)
    alone, by_hand = (shutil.copytree(data.parents[3], tmp_path / name, symlinks=True) for name in ("alone", "by_hand"))
    shown = snakemake(by_hand, "--dry-run", "--printshellcmds", TARGET).stdout
    arguments = shlex.split(shown.partition(f"{forking.SCRIPT} ")[2].partition("\n")[0])
    assert arguments[:2] == ["--output", TARGET]

    forking.preload()
    monkeypatch.chdir(alone)
    assert forking.wait(forking.start(arguments, 2, tmp_path / "alone.log")) == [0, 0]
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [
            REPOSITORY / "tests/slurm/own_namespaces.sh",
            "bash",
            "-c",
            ON_TWO_NODES,
            "nodes",
            "--nproc-per-node=1",
            forking.SCRIPT,
            *arguments,
        ],
        cwd=by_hand,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=limits.seconds(120),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    folders = [(folder / TARGET).parent for folder in (alone, by_hand)]
    assert losses(folders[0]) == losses(folders[1])
    assert weights(alone) == weights(by_hand) != {}
    planned = snakemake(by_hand, "--dry-run", TARGET.replace("training", "selection")).stdout
    assert "rule select_checkpoint:" in planned and "rule train_model:" not in planned
