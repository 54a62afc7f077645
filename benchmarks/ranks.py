"""What a rank costs as there are more of them: open files, CPU time to connect and to exchange, imports. Tiny, without a model.

Ranks of 2 to 32 are forked from one process that has imported torch, and connected through a store of their own, as torchrun's
agent hosts one: each connects to all others when it starts (gloo's default), or to those that it exchanges something with. Then
torchrun starts fresh ones, whose imports are counted. Lines are fitted through the numbers of open files, and drawn out to 1,024.
"""

import json
import os
import re
import shutil
import socket
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import SCRIPTS, command_line, run, torchrun, write_figures

opened = 0  # files, by imports alone


def count_opened(event: str, _: tuple) -> None:
    global opened
    opened += event == "open"


if __name__ == "__main__" and "--fresh" in sys.argv:
    sys.addaudithook(count_opened)

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch._dynamo  # noqa: E402 - DDP does, which would take longer in each forked rank than all that is measured
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

from snaketrain.strategies import ddp, distributed, fsdp  # noqa: E402

FAR = 1024
EXCHANGES = 10
IMPORTS = "import torch, torch._dynamo, transformers.models.bert.modeling_bert, snaketrain.training.trainer"
STRATEGIES: dict[str, Callable[[], distributed.Distributed]] = {
    "ddp": lambda: ddp.Ddp(device="cpu", precision="fp32"),
    "zero1": lambda: ddp.Zero1(device="cpu", precision="fp32"),
    "hsdp": lambda: fsdp.Hsdp(shard=2, device="cpu", precision="fp32"),
}


def open_files(pid: object = "self") -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def measure(name: str, before: int) -> dict[str, float]:
    """What this rank finds while it connects, trains for two steps, and collects a checkpoint."""
    strategy, clock, cpu = STRATEGIES[name](), time.perf_counter(), time.process_time()
    strategy.start()
    strategy.wait()
    found = {"connecting, s": time.perf_counter() - clock, "connecting, CPU s": time.process_time() - cpu}
    module, optimizer = strategy.prepare(nn.Linear(64, 64), lambda parameters, sharded=None, **options: make(parameters, sharded, options))
    for _ in range(2):
        strategy.backward(module(torch.ones(4, 64)).sum(), torch.tensor(1.0))
        optimizer.step()
        optimizer.zero_grad()
    strategy.weights(module)
    strategy.optimizer_state(module, optimizer, lambda tensor: tensor)
    strategy.wait()
    for what, exchange in {"numbers": lambda: strategy.all_reduce_scalars(1.0, 2.0, 3.0), "objects": strategy.wait}.items():
        exchange()
        clock, cpu = time.perf_counter(), time.process_time()
        for _ in range(EXCHANGES):
            exchange()
        found[f"exchange of {what}, ms"] = (time.perf_counter() - clock) * 1e3 / EXCHANGES
        found[f"exchange of {what}, CPU ms"] = (time.process_time() - cpu) * 1e3 / EXCHANGES
    found["open files"] = open_files() - before
    strategy.wait()
    return found


def make(parameters: dict[str, nn.Parameter], sharded: Any, options: dict[str, Any]) -> torch.optim.Optimizer:
    if sharded:
        return sharded(list(parameters.values()), optimizer_class=torch.optim.Adam, **options)
    return torch.optim.Adam(parameters.values())


# --- forked ranks


def forked(name: str, ranks: int, lazy: bool) -> dict[str, float]:
    """The most that a rank needs, what the first one needs, and what the host of the store needs."""
    with tempfile.TemporaryDirectory() as made:
        folder, port = Path(made), free_port()
        host = fork(lambda: host_store(port, folder), {})
        pids = [fork(lambda: write(folder / f"{os.environ['RANK']}.json", measure(name, open_files())), environment(rank, ranks, port, lazy))
                for rank in range(ranks)]  # fmt: skip
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        (folder / "over").touch()
        os.waitpid(host, 0)
        assert not any(codes), codes
        found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
        most = json.loads((folder / "host.json").read_text())
    figures = {key: statistics.median(each[key] for each in found) for key in found[0]}
    return figures | most | {"open files": max(each["open files"] for each in found[1:]), "open files, rank 0": found[0]["open files"]}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def host_store(port: int, folder: Path) -> None:
    store, before, most = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False), open_files(), 0
    while not (folder / "over").exists():
        most = max(most, open_files() - before)
        time.sleep(0.01)
    del store
    write(folder / "host.json", {"open files, host of the store": most})


def environment(rank: int, ranks: int, port: int, lazy: bool) -> dict[str, object]:
    return {
        "RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": True, "TORCH_GLOO_LAZY_INIT": int(lazy),
    }  # fmt: skip


def fork(work: Callable[[], None], settings: dict[str, object]) -> int:
    """This process must have no other threads, which forked ones do not inherit."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        os.environ.update({key: str(value) for key, value in settings.items()})
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def write(path: Path, found: dict[str, float]) -> None:
    beside = path.with_suffix(".tmp")
    beside.write_text(json.dumps(found))
    beside.rename(path)


# --- fresh ranks


def fresh(ranks: int) -> dict[str, float]:
    """Started by torchrun: what each must import before it can connect."""
    with tempfile.TemporaryDirectory() as folder:
        seconds = run([*torchrun(ranks), __file__, "--fresh", folder], {"OMP_NUM_THREADS": "1"}).seconds
        found = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
    figures = {key: round(statistics.median(each[key] for each in found), 3) for key in found[0]}
    return figures | {"open files, agent": max(each["open files, agent"] for each in found), "start to end, s": round(seconds, 1)}


def file_calls() -> int | None:
    """Of one process that imports what a training does: `stat`, `open` and the like, each of which a shared file system may answer."""
    if not shutil.which("strace"):
        return None
    with tempfile.NamedTemporaryFile() as file:
        start = ["strace", "-f", "-c", "-o", file.name, "-e", "trace=%file", sys.executable, "-c"]
        run([*start, IMPORTS], {"PYTHONPATH": str(SCRIPTS)})
        return int(re.findall(r"^100\.00 +\S+ +\d+ +(\d+)", Path(file.name).read_text(), re.MULTILINE)[0])


def fresh_rank(folder: Path) -> None:
    import transformers.models.bert.modeling_bert  # noqa: F401 - as a training would

    found = {"imports, CPU s": time.process_time(), "files opened by imports": opened, "modules": len(sys.modules)}
    found |= measure("ddp", open_files()) | {"open files, agent": open_files(os.getppid())}
    write(folder / f"{os.environ['RANK']}.json", found)


# --- the law


def row(ranks: list[int], what: str, found: list[float]) -> dict[str, Any]:
    """Times on a few cores, which all ranks share, say nothing of more ranks on more cores."""
    return {"found": found, **(law(ranks, found) if what.startswith("open files") else {})}


def law(ranks: list[int], found: list[float]) -> dict[str, Any]:
    """A straight line through the figures, over the number of ranks or over its logarithm, whichever fits better."""
    lines = {}
    for over, scale in {"ranks": np.asarray, "log2(ranks)": np.log2}.items():
        (slope, start), residuals, *_ = np.polyfit(scale(ranks), found, 1, full=True)
        lines[over] = float(residuals[0]), float(slope), float(start), float(start + slope * scale(FAR))
    over = min(lines, key=lambda over: lines[over])
    _, slope, start, far = lines[over]
    return {"law": f"{round(start, 2) + 0.0:g} + {slope:.3g} * {over}", f"at {FAR}": round(far, 1)}


def main() -> None:
    parser = command_line("ranks", __doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16, 32], help="numbers of ranks to start (default: %(default)s)")
    parser.add_argument(
        "--fresh-ranks", type=int, nargs="*", default=[2, 4, 8], help="with imports of their own, which take memory; %(default)s"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {"cores": os.cpu_count(), "ranks": args.ranks}
    for name in STRATEGIES:
        for lazy in (False, True):
            figures = {ranks: forked(name, ranks, lazy) for ranks in args.ranks}
            found[f"{name}, {'connected on demand' if lazy else 'each to all'}"] = {
                what: row(args.ranks, what, [round(figures[ranks][what], 3) for ranks in args.ranks]) for what in figures[args.ranks[0]]
            }
    found["fresh"] = {ranks: fresh(ranks) for ranks in args.fresh_ranks}
    found["file system calls of imports"] = file_calls()
    write_figures(args.output, found)


if __name__ == "__main__":
    if "--fresh" in sys.argv:
        fresh_rank(Path(sys.argv[-1]))
    else:
        main()
