"""Random histories of a simulated cluster, in virtual time: what was simulated, what went wrong, how every run ended.

    python tests/slurm/simulate.py --histories 1000           # the whole figure
    python tests/slurm/simulate.py --seed 17 --story run003   # one history again, with what happened to a run

docs/slurm_guarantees.md says what is real in it, and what is simulated.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

EVERY = 10  # histories a line tells how many there are
REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / folder) for folder in ("tests", "workflow/scripts", "workflow/scripts/tools")]

from simulation.history import History, Outcome  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=20, help="how many (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=500, help="jobs of each workflow (default: %(default)s)")
    parser.add_argument("--first", type=int, default=1, metavar="SEED", help="seed of the first history (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="only the history of this seed, with its story")
    parser.add_argument("--story", default="", metavar="TEXT", help="of the story only the lines that contain this")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes that simulate (default: one for each core)")
    args = parser.parse_args()
    if args.seed is not None:
        outcome = simulate(args.seed, args.jobs)
        print(outcome.story(args.story))
        report([outcome])
        return bool(outcome.problems)
    for number in (signal.SIGINT, signal.SIGTERM):  # either ends it with what is known until then
        signal.signal(number, signal.default_int_handler)
    began, outcomes = time.monotonic(), []
    seeds = range(args.first, args.first + args.histories)
    with ProcessPoolExecutor(args.workers, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)) as pool:
        try:
            for outcome in pool.map(briefly, seeds, [args.jobs] * args.histories):
                outcomes.append(outcome)
                for problem in outcome.problems[:3]:
                    print(f"seed {outcome.seed}: {problem}", flush=True)
                if len(outcomes) % EVERY == 0:
                    print(f"{len(outcomes)} of {args.histories} histories after {time.monotonic() - began:.0f} s", flush=True)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            print(f"interrupted after {len(outcomes)} of {args.histories} histories")
    report(outcomes)
    print(f"{time.monotonic() - began:.0f} s with {args.workers} processes")
    return any(outcome.problems for outcome in outcomes)


def simulate(seed: int, jobs: int) -> Outcome:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        return History(seed, Path(folder) / "workspace", jobs).run()


def briefly(seed: int, jobs: int) -> Outcome:
    outcome = simulate(seed, jobs)
    outcome.events.clear()
    return outcome


def report(outcomes: list[Outcome]) -> None:
    with_faults = sum(any(outcome.faults.values()) for outcome in outcomes)
    runs, reasons = (sum((getattr(outcome, name) for outcome in outcomes), Counter()) for name in ("runs", "reasons"))
    print(
        f"\n{len(outcomes)} histories, {with_faults} of them with faults; {sum(outcome.hours for outcome in outcomes):.0f} hours of virtual time"
    )
    print(
        f"jobs of the workflows: {sum(outcome.jobs for outcome in outcomes)}; submitted to SLURM: {sum(outcome.submitted for outcome in outcomes)}"
    )
    print("runs: " + ", ".join(f"{number} {how}" for how, number in runs.most_common()))
    print("what was told of those that failed: " + (", ".join(f"{number} {why}" for why, number in reasons.most_common()) or "-"))
    print(f"\n{'what went wrong':38} {'times':>8} {'histories':>10}")
    for name in sorted({name for outcome in outcomes for name in outcome.faults}):
        counts = [outcome.faults[name] for outcome in outcomes]
        print(f"{name:38} {sum(counts):8} {sum(map(bool, counts)):10}")
    bad = [outcome.seed for outcome in outcomes if outcome.problems]
    print(f"\nhistories with problems: {len(bad)}{f', seeds {bad[:20]}' if bad else ''}")


if __name__ == "__main__":
    sys.exit(main())
