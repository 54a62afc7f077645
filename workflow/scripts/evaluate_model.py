"""Evaluate the selected checkpoint on the development and test set: every example exactly once, on any number of processes."""

import os
import time
from pathlib import Path

from snaketrain import stages
from snaketrain.configuration import from_strings
from snaketrain.manifests import digest, read_manifest
from snaketrain.settings import Evaluate, Model, Train

SPLITS = ("dev", "test")


def main() -> None:
    started = time.time()
    parser = stages.parser(__doc__)
    parser.add_argument("--run-name", required=True, help="name of the run")
    parser.add_argument("--training", required=True, help="manifest of the training, which knows the model and the task")
    parser.add_argument("--selection", required=True, help="manifest of the selected checkpoint")
    parser.add_argument("--data", required=True, help="manifest of the prepared data")
    parser.add_argument("--model", help="manifest of the fetched model that the training started from")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    args = parser.parse_args()
    folder = Path(args.output).parent
    evaluate = Evaluate.model_validate(from_strings(args.settings)["evaluate"])
    selection, data = read_manifest(args.selection), read_manifest(args.data)

    import numpy as np

    # the same weights on the same data give the same scores: a changed plot or interval need not run the model again
    scores = folder / "scores" / digest(selection.facts["weights"], data.content, sorted(args.code))
    if not all((scores / f"{split}.npz").is_file() for split in SPLITS):
        score(args, selection, data, evaluate.batch_size, scores)
    if int(os.environ.get("RANK", "0")) > 0:  # the first process alone writes what all have found
        return

    from snaketrain.results import write_results

    files = []
    for split in SPLITS:
        table = read_table(data.file(f"{split}.arrow"))
        found = np.load(scores / f"{split}.npz")
        write_results(
            folder, args.run_name, split, data.facts["label_names"], table["id"], table["text"], table["label"],
            found["probabilities"], found["loss"], evaluate.confidence, evaluate.bins,
        )  # fmt: skip
        files += [f"{split}_{name}" for name in ("results.json", "predictions.csv", "confusion.png", "reliability.png")]
    stages.finish("evaluate_model", args, {"selection": selection.content, "data": data.content}, files, {"run": args.run_name}, started)


def read_table(path: Path) -> dict:
    import numpy as np
    import pyarrow as pa

    table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    texts = table["text"].to_pylist()
    if "text_pair" in table.column_names:
        texts = [f"{a}\t{b}" for a, b in zip(texts, table["text_pair"].to_pylist(), strict=True)]
    return {"id": table["id"].to_numpy(), "label": table["label"].to_numpy().astype(np.int64), "text": texts}


def score(args, selection, data, batch_size: int, folder: Path) -> None:
    """Run the model over both splits; the first process writes what all have found."""
    # that some weights are missing before the trained ones are loaded is no news
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

    import numpy as np
    import torch
    from safetensors.torch import load_model
    from tqdm import tqdm

    from snaketrain.data.opening import open_split
    from snaketrain.learner import Learner, build, make_task
    from snaketrain.loop import evaluation_batches
    from snaketrain.patience import Patience
    from snaketrain.strategies import make_strategy

    sections = from_strings(read_manifest(args.training).settings)
    train, model = Train.model_validate(sections["train"]), Model.model_validate(sections["model"])
    strategy = make_strategy(train.strategy.use, train.strategy.arguments, device=args.device, precision=train.precision)
    strategy.start()
    task = make_task(train)
    modules = build(task, train, model, read_manifest(args.model).folder / "files" if args.model else None, data.facts)
    for name, module in modules.items():
        load_model(module, selection.file(f"model/{name}.safetensors"))
        modules[name] = strategy.place(module)
    learner = Learner(task, strategy, modules, {}, Patience("", "", None), None)
    for split in SPLITS:
        examples = open_split(data, split)
        bar = tqdm(total=len(examples), desc=f"{args.run_name}: {split}", unit="example", disable=strategy.rank > 0, mininterval=5)
        mine: dict[str, list[np.ndarray]] = {"ids": []}
        with torch.inference_mode():
            for piece, batch in evaluation_batches(learner, examples, batch_size):
                predicted = {"ids": batch["ids"], **task.predict(modules, batch)}  # by all, since a model may be spread over all
                if not piece.filler:
                    for name, rows in predicted.items():
                        mine.setdefault(name, []).append(rows.cpu().numpy())
                    bar.update(len(piece.ids) * strategy.data_processes)
        bar.close()
        everyones = strategy.everyones({name: np.concatenate(rows) for name, rows in mine.items() if rows})
        if strategy.rank == 0:
            merge(everyones, len(examples), folder / f"{split}.npz")
    strategy.finish()


def merge(parts: list[dict], examples: int, path: Path) -> None:
    """The rows of all processes in the order of the examples, each of which must be there exactly once."""
    import numpy as np

    parts = [part for part in parts if part]
    merged = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}
    order = np.argsort(merged["ids"], kind="stable")
    if not np.array_equal(merged["ids"][order], np.arange(examples)):
        raise SystemExit(f"{path}: {len(order)} rows for {examples} examples: some were evaluated twice or not at all. Please report this.")
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{name: rows[order] for name, rows in merged.items()})


if __name__ == "__main__":
    main()
