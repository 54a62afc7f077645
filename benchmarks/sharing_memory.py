"""How much host memory the processes of one machine need for a model that is sharded over them.

Four processes train a Llama under fsdp: until the first step, resuming from a checkpoint until the next step, and to the end, where
each saves its shard; with and without `build_once`. The same until the first step from pretrained weights in half precision: read by
slices, and, by a task of the user's, as a whole by each process or by the first one. A process's own memory
(RssAnon: neither code nor pages of files, which the processes share) is sampled every few milliseconds, and its maximum is
reported relative to the size of the model's parameters (fp32), minus what the same training needs for a tiny model.
The optimizer's state is twice as large as the parameters.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import RETURNS_MEMORY, SCRIPTS, about, command_line, memory, torchrun, training, write_figures
from pipeline.workspace import prepared

from snaketrain.config.schema import Model, Source, Train
from snaketrain.runtime.journal import read_events
from snaketrain.runtime.manifests import read_manifest
from snaketrain.runtime.stages import settings_words

PROCESSES, POLL_SECONDS, DEADLINE_SECONDS = 4, 0.005, 600
UNTIL_FIRST_STEP = "until the first step"
# steps, whether it starts fresh, and whether it is stopped at its first step
CASES = {
    UNTIL_FIRST_STEP: (2, True, True),
    "to the end, with a save": (2, True, False),
    "going on, until the next step": (4, False, True),
}
WHOLE_TASK = """
from snaketrain.tasks.text_classification import TextClassification


class Whole(TextClassification):
    \"\"\"Might look at the weights, so that it gets all of them.\"\"\"

    def build(self, model, folder, data):
        return super().build(model, folder, data)
"""


@dataclass(frozen=True)
class Way:
    """How the processes come by the model."""

    build_once: bool = False
    pretrained: bool = False
    whole: bool = False  # by the task above

    @property
    def cases(self) -> list[str]:
        return [UNTIL_FIRST_STEP] if self.pretrained else list(CASES)  # afterwards they are alike


WAYS = {
    "each builds": Way(),
    "the first builds": Way(build_once=True),
    "pretrained, each builds": Way(pretrained=True, whole=True),
    "pretrained, the first builds": Way(build_once=True, pretrained=True, whole=True),
    "pretrained, by slices": Way(pretrained=True),
}


def llama(width: int, layers: int) -> Model:
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers}
    sizes |= {"num_attention_heads": 8, "num_key_value_heads": 8}
    return Model(use="transformers.LlamaForSequenceClassification", arguments=sizes)


def fetched(model: Model, vocabulary: int, folder: Path) -> Path:
    """The manifest of fetched weights of such a model, in several files, without the head."""
    import torch
    from transformers import LlamaConfig, LlamaModel

    LlamaModel(LlamaConfig(vocab_size=vocabulary, **model.arguments)).to(torch.bfloat16).save_pretrained(
        folder / "base", max_shard_size="50MB"
    )
    words = settings_words(folder, "fetch_source", {"source": Source(path=str(folder / "base")).as_json})
    subprocess.run([sys.executable, str(SCRIPTS / "fetch_source.py"), "--output", str(folder / "manifest.json"), *words], check=True)
    return folder / "manifest.json"


def command(data: Path, folder: Path, model: Model, steps: int, way: Way, weights: Path) -> list[str]:
    strategy = {"use": "fsdp", "arguments": {"build_once": way.build_once}}
    train = Train(batch_size=8, steps=steps, schedule="constant", warmup=0, evaluate_every=10**9, strategy=strategy)
    if way.pretrained:
        model = Model(use=model.use, source=Source(path=str(weights.parent / "base")))
    if way.whole:
        (weights.parent / "whole.py").write_text(WHOLE_TASK)
        train = train.model_copy(update={"task": train.task.model_copy(update={"use": f"{weights.parent}/whole.py:Whole"})})
    options = ["--model", weights] if way.pretrained else []
    return [*map(str, torchrun(PROCESSES)), *training(folder, data, train, model, "--log-every", 1, *options)]


def peaks(words: list[str], folder: Path, until_first_step: bool) -> list[int]:
    """The most memory of its own that each process had, in order of their sizes: until the first step, at which they are stopped, or the end."""
    log = folder.with_suffix(".log")
    with open(log, "w", encoding="utf-8") as output:
        process = subprocess.Popen(words, stdout=output, stderr=output, env=os.environ | RETURNS_MEMORY)
        most: dict[str, int] = {}
        before, end = attempts(folder), time.monotonic() + DEADLINE_SECONDS
        while process.poll() is None and time.monotonic() < end and not (until_first_step and attempts(folder) > before):
            for _ in range(20):  # to read the journal takes longer than to look
                for child in children(process.pid):
                    most[child] = max(most.get(child, 0), memory("RssAnon", child))
                time.sleep(POLL_SECONDS)
        process.send_signal(signal.SIGTERM)
        process.wait()
    if attempts(folder) == before or not (until_first_step or (folder / "manifest.json").is_file()):
        raise SystemExit(f"it did not come so far:\n{log.read_text(encoding='utf-8')[-4000:]}")
    return sorted(most.values(), reverse=True)[:PROCESSES]


def attempts(folder: Path) -> int:
    journal = folder / "journal.jsonl"
    return sum(event["event"] == "attempt" for event in read_events(journal)[0]) if journal.is_file() else 0


def children(process: int) -> list[str]:
    try:
        return Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return []


def main() -> None:
    parser = command_line("sharing_memory", __doc__)
    parser.add_argument("--width", type=int, default=512, help="hidden size of the model (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=16, help="layers of the model (default: %(default)s)")
    parser.add_argument("--way", choices=WAYS, action="append", help="measure these alone, and leave the other figures as they are")
    args = parser.parse_args()
    found: dict[str, Any] = json.loads(args.output.read_text()) if args.way else {}
    found |= about() | {"processes": PROCESSES}
    with tempfile.TemporaryDirectory(prefix="memory-") as name:
        folder = Path(name)
        data = prepared(folder / "workspace")
        models = {"nothing": llama(16, 2), "model": llama(args.width, args.layers)}
        weights = {
            kind: fetched(model, read_manifest(data).facts["vocab_size"], folder / f"{kind}-weights") for kind, model in models.items()
        }
        for title in args.way or WAYS:
            way = WAYS[title]
            most: dict[str, list[list[int]]] = {case: [] for case in way.cases}
            for kind, model in models.items():
                place = folder / f"{kind}, {title}"
                for case in way.cases:
                    steps, fresh, until_first_step = CASES[case]
                    if fresh:
                        shutil.rmtree(place, ignore_errors=True)
                    words = command(data, place, model, steps, way, weights[kind])
                    most[case].append(peaks(words, place, until_first_step))
            stored = sum(file.stat().st_size for file in weights["model"].parent.glob("base/*.safetensors"))
            found |= {"parameters, MB": round(2 * stored / 1e6), title: {}}  # the files are in half precision
            for case, (nothing, whole) in most.items():
                found[title][case] = [round((large - small) / (2 * stored), 2) for small, large in zip(nothing, whole, strict=True)]
                print(f"{title}, {case}: {found[title][case]}", file=sys.stderr, flush=True)
            shutil.rmtree(place)
    write_figures(args.output, found)


if __name__ == "__main__":
    main()
