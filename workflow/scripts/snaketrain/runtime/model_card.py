"""Writes the model card, `README.md` beside the selected model: data, settings, metrics, limits, and how to load it.

The Hugging Face hub reads its first block. `select_checkpoint` writes the card; each evaluation writes it again with
all results that exist by then, and `snaketrain verify` with what it has found. It is in no manifest: it repeats what the manifests have, and rewording it makes nothing stale.
"""

import html
import json
import math
import re
import time
from pathlib import Path

import yaml

from snaketrain.runtime import strict_json
from snaketrain.runtime.manifests import Manifest, read_if_intact, read_manifest, write_text
from snaketrain.runtime.stages import by_name
from snaketrain.runtime.strict_json import Json, JsonObject, rounded

# the settings that a reader asks for first, with those below them
MATTER = (
    *("model.use", "model.source", "model.arguments", "model.initial_weights", "model.adapters", "train.task", "train.strategy"),
    *("train.batch_size", "train.batch_tokens", "train.block_length", "train.packing", "train.epochs", "train.steps"),
    *("train.optimizer", "train.learning_rate", "train.weight_decay", "train.groups", "train.schedule", "train.warmup"),
    *("train.freeze", "train.callbacks", "train.early_stopping", "train.seed"),
)
# by how the name of an architecture ends: the class that loads it with its head, and its kind of pipeline
ARCHITECTURES = {
    "ForSequenceClassification": ("AutoModelForSequenceClassification", "text-classification"),
    "ForCausalLM": ("AutoModelForCausalLM", "text-generation"),
    "LMHeadModel": ("AutoModelForCausalLM", "text-generation"),
    "ForConditionalGeneration": ("AutoModelForSeq2SeqLM", None),
    "ForMaskedLM": ("AutoModelForMaskedLM", "fill-mask"),
    "ForTokenClassification": ("AutoModelForTokenClassification", "token-classification"),
    "ForQuestionAnswering": ("AutoModelForQuestionAnswering", "question-answering"),
    "ForMultipleChoice": ("AutoModelForMultipleChoice", "multiple-choice"),
    "ForImageClassification": ("AutoModelForImageClassification", "image-classification"),
    "ForAudioClassification": ("AutoModelForAudioClassification", "audio-classification"),
}
SPLITS = {"dev": "development", "test": "test"}
MOST_CLASSES = 30
VERIFIED = "verified.json"  # in the folder of a training
LOAD = """from transformers import {auto}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{folder}")
model = {auto}.from_pretrained("{folder}")"""
LOAD_WITH_PROCESSOR = """from transformers import {auto}, AutoProcessor

processor = AutoProcessor.from_pretrained("{folder}")
model = {auto}.from_pretrained("{folder}")"""
LOAD_WEIGHTS = """from safetensors.torch import load_file

# build the module as in the training, from the setting `model`, then:
module.load_state_dict(load_file("{folder}/model.safetensors"))"""


def write_card(training: Manifest, data: Manifest, selection: Manifest) -> None:
    """Write the card, with the results of all evaluations of this selection."""
    evaluations: list[Manifest] | None = None
    while evaluations != (found := evaluations_of(selection)):  # another job may have written a card without the results of this one
        evaluations = found
        write_text(selection.folder / "model/README.md", card(training, data, selection, evaluations))


def card(training: Manifest, data: Manifest, selection: Manifest, evaluations: list[Manifest]) -> str:
    chosen = strict_json.loads((selection.folder / "selection.json").read_text(encoding="utf-8"))
    results = results_in(evaluations)
    model = selection.folder / "model"
    architecture = architecture_of(model)
    settings = by_name(training.settings)
    head = metadata(training.facts["run"], by_name(data.settings), settings, architecture, results)
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---",
        f"# {plain(training.facts['run'])}",
        introduction(settings, architecture, chosen, "initial" in training.inputs),
        "## Metrics",
        metrics_table(results, chosen),
        "## Data",
        data_section(data, evaluations),
        "## Limits",
        limits(data, results),
        *verified(training),
        "## Load it",
        f"```python\n{loading(model, architecture)}\n```",
        "## Settings",
        table(("setting", "value"), [(name, json.dumps(value, ensure_ascii=False)) for name, value in shown(settings).items()]),
    ]
    return "\n\n".join(parts) + "\n"


def evaluations_of(selection: Manifest) -> list[Manifest]:
    """First the one of the development and test sets, then those on further sets."""
    run = selection.folder.parent
    paths = [run / "evaluation/manifest.json", *sorted(run.glob("sets/*/manifest.json"))]
    found = [read_manifest(path) for path in paths if path.is_file()]
    return [made for made in found if made.inputs.get("selection") == selection.content]


def results_in(evaluations: list[Manifest]) -> list[JsonObject]:
    files = [made.folder / name for made in evaluations for name in sorted(made.files) if name.endswith("_results.json")]
    found = [strict_json.loads(file.read_text(encoding="utf-8")) for file in files]
    return [each for each in found if each["metrics"]]


def architecture_of(model: Path) -> str | None:
    """The class of a transformers model; None for another module."""
    path = model / "config.json"
    named = json.loads(path.read_text(encoding="utf-8")).get("architectures") if path.is_file() else None
    return str(named[0]) if named else None


def known_of(architecture: str | None) -> tuple[str, str | None]:
    """The class that loads it, and its kind of pipeline. `AutoModel` would load one of another kind without its head."""
    name = (architecture or "").rpartition(".")[2]
    return next((known for ending, known in ARCHITECTURES.items() if name.endswith(ending)), (name if "For" in name else "AutoModel", None))


def metadata(run: str, data: JsonObject, settings: JsonObject, architecture: str | None, results: list[JsonObject]) -> JsonObject:
    """What the hub reads, as far as it is known."""
    base, source, pipeline = settings.get("model.source.hub"), data.get("data.train.hub"), known_of(architecture)[1]
    head: JsonObject = {"library_name": "transformers"} if architecture else {}
    head |= {"pipeline_tag": pipeline} if pipeline else {}
    head |= {"tags": ["snaketrain"]}
    head |= {"base_model": base} if base else {}
    head |= {"datasets": [source]} if source else {}
    if results:
        defined = [{name: value for name, value in each["metrics"].items() if math.isfinite(value)} for each in results]
        head["metrics"] = sorted({name for metrics in defined for name in metrics})
        dataset = {"name": str(data.get("data.name") or "own data"), "type": str(source or data.get("data.name") or "own")}
        found = [
            {
                "task": {"type": pipeline or "other"},
                "dataset": dataset | {"split": name} if (name := each["split"]) in SPLITS else {"name": name, "type": name},
                "metrics": [{"type": name, "name": name, "value": value} for name, value in metrics.items()],
            }
            for each, metrics in zip(results, defined, strict=True)
        ]
        head["model-index"] = [{"name": run, "results": found}]
    return head


def introduction(settings: JsonObject, architecture: str | None, chosen: JsonObject, has_initial_weights: bool) -> str:
    source = next((settings[key] for key in ("model.source.hub", "model.source.package", "model.source.path") if settings.get(key)), None)
    source = f"the run {settings['model.source.run']}" if settings.get("model.source.run") else source
    beginning = "the weights of earlier runs or files" if has_initial_weights else "a random initialisation"
    start = f"fine-tuned from {plain(source)}" if source else f"trained from {beginning}"
    return (
        f"{plain(architecture or settings.get('model.use'))}, {start}, by [Snakemake](https://snakemake.github.io) with snaketrain. "
        f"Checkpoint: {plain(chosen['why'])}."
    )


def metrics_table(results: list[JsonObject], chosen: JsonObject) -> str:
    columns = ("set", "metric", "value", "interval", "baseline")
    lines: list[tuple[Json, ...]] = []
    if not results:
        lines += [("development", name, rounded(value, 4), "", "") for name, value in chosen["winner"]["metrics"].items()]
        whose = " of the best checkpoint alone, not of the average" if chosen.get("averaged") else ""
        return f"{table(columns, lines)}\n\nNot evaluated yet: these are of the training's own evaluation{whose}."
    for each in results:
        interval = f"{rounded(each['interval'][0], 4)} to {rounded(each['interval'][1], 4)}" if each.get("interval") else ""
        for name, value in each["metrics"].items():
            found = ((label, base) for label, base in each["baselines"].items() if name in base)
            constant = "; ".join(f"{rounded(base[name], 4)} ({base.get('answer', label)})" for label, base in found)
            shown_interval = interval if name == "accuracy" else ""
            lines.append((SPLITS.get(each["split"], each["split"]), name, rounded(value, 4), shown_interval, constant))
    confidence = next((each["confidence"] for each in results if "confidence" in each), None)
    said = [f"The interval is the {confidence:.0%} one over the examples (Wilson)."] if confidence else []
    said += ["The baseline is a constant answer."] if any(each["baselines"] for each in results) else []
    return "\n\n".join([table(columns, lines), " ".join(said)]).rstrip()


def data_section(data: Manifest, evaluations: list[Manifest]) -> str:
    """With the test set and the evaluation sets, which are prepared on their own."""
    facts, settings, splits = data.facts, by_name(data.settings), data.facts.get("splits", {})
    for made in evaluations:
        settings |= made.facts.get("test", {})
        splits = splits | made.facts.get("splits", {})
    names = facts.get("label_names") or []
    lines = []
    for split, found in splits.items():
        counts = dict(zip(names[:MOST_CLASSES], found.get("label_counts") or [], strict=False))
        examples = "a stream" if found.get("stream") else found.get("examples", "")
        lines.append((split, examples, ", ".join(f"{name} {count}" for name, count in counts.items())))
    source = {key: value for key, value in settings.items() if re.match(r"data\.(train|dev|test|where)\b", key) and value}
    origin = "; ".join(
        f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in source.items() if not re.search("sha256|hub_type", key)
    )
    return f"{plain(facts.get('name', ''))} ({plain(origin)}), content {data.content}.\n\n" + table(("split", "examples", "labels"), lines)


def limits(data: Manifest, results: list[JsonObject]) -> str:
    facts = data.facts
    found = [
        "Tested on the data above only. License, intended use, languages and biases are not known to the pipeline: add them where you publish the model, since this file is written again."
    ]
    if longest := facts.get("max_length"):
        cut = facts.get("splits", {}).get("train", {}).get("truncated")
        share = f"; {cut} of the training examples were cut to that" if cut is not None else ""
        found.append(f"An input has at most {longest} tokens{share}.")
    if issues := {name: count for name, count in (facts.get("odd") or {}).items() if count}:
        found.append(f"Issues in the data: {', '.join(f'{plain(name)} {count}' for name, count in issues.items())}.")
    for each in results:
        if each["split"] == "test" and (classes := each.get("classes")):
            name, worst = min(classes.items(), key=lambda item: item[1]["f1"])
            f1 = rounded(worst["f1"], 4)
            found.append(f"The weakest class on the test set is {plain(name)}: F1 {f1}, and it occurs {worst['examples']} times.")
        if each["split"] == "test" and each.get("calibration_error") is not None:
            found.append(f"Its probabilities are off by {rounded(each['calibration_error'], 4)} on average (expected calibration error).")
    return "\n".join(f"- {line}" for line in found)


def verified(training: Manifest) -> list[str]:
    """What replays of this training have found, if any were made."""
    found = read_if_intact(training.folder / VERIFIED, "the model card does not mention it")
    if not found or found["identity"] != training.identity:
        return []
    steps = sum(each["last"] - each["first"] for each in found["intervals"])
    different = [f"{each['first'] + 1} to {each['last']}" for each in found["intervals"] if each["differences"]]
    damage = f" Damaged: {plain('; '.join(found['damage']))}." if found["damage"] else ""
    outcome = f"DIFFERENT in steps {', '.join(different)}" if different else "equal, bit for bit"
    day = time.strftime("%Y-%m-%d", time.localtime(found["time"]))
    return [
        "## Replayed",
        f"Weights, optimizer state and losses of {steps} steps, replayed by `snaketrain verify` on {day}, were {outcome}.{damage}",
    ]


def loading(model: Path, architecture: str | None) -> str:
    if architecture and (model / "preprocessor_config.json").is_file():
        return LOAD_WITH_PROCESSOR.format(auto=known_of(architecture)[0], folder=model)
    if architecture is None or not (model / "tokenizer.json").is_file():
        return LOAD_WEIGHTS.format(folder=model)
    return LOAD.format(auto=known_of(architecture)[0], folder=model)


def shown(settings: JsonObject) -> JsonObject:
    return {
        name: value
        for name, value in settings.items()
        if name.startswith(MATTER)
        and not name.endswith(("sha256", "hub_type"))
        and (value or (isinstance(value, int | float) and value is not False))
    }


def table(columns: tuple[str, ...], lines: list[tuple[Json, ...]]) -> str:
    rows = [columns, tuple("---" for _ in columns), *([plain(cell) for cell in line] for line in lines)]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)


def plain(text: object) -> str:
    """Text on one line that is neither markup nor HTML."""
    line = " ".join(str(text).split())
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", html.escape(line, quote=False))
