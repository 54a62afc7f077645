"""Upload the model that a run selected, with its tokenizer, settings and model card, to the Hugging Face hub:

snaketrain publish baseline --to me/my-model --private

The files are compared with the digests that selection recorded, and listed, before anything is sent. The token is the one of
HF_TOKEN or of `hf auth login`. An upload that was interrupted is completed by the same command.
"""

import argparse
import fnmatch
import os
import re
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # where the package lies

from snaketrain.runtime.credentials import hidden, hide_in_tracebacks
from snaketrain.runtime.manifests import MODEL, read_if_intact, read_result, selected_model, verify
from snaketrain.runtime.model_card import evaluations_of, metadata, results_in
from snaketrain.runtime.provenance import own_files
from snaketrain.runtime.strict_json import JsonObject, rounded, shortened

if TYPE_CHECKING:
    from huggingface_hub import HfApi

CARD = "README.md"
RESULTS = ".eval_results/snaketrain.yaml"
# of an earlier upload these would be loaded, or believed, beside the new files
OURS = ("model*.safetensors", "model*.safetensors.index.json", RESULTS)
RESULT = re.compile(r"(?P<metric>[^=]+)=(?P<dataset>[\w.-]+/[\w.-]+):(?P<task>[^\s:]+)")
AGAIN = "Then run the same command again: what has arrived is not sent twice."
LOGIN = "Make a token with write access in the settings of your account there; set HF_TOKEN to it, or run `.venv/bin/hf auth login`."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN", help="name of the run")
    parser.add_argument("--to", required=True, metavar="USER/NAME", help="repository on the hub, which is made if it is not there")
    parser.add_argument("--private", action="store_true", help="make a private repository; one that is public already is refused")
    parser.add_argument("--revision", metavar="BRANCH", help="branch of the repository, made if it is not there (default: main)")
    parser.add_argument(
        "--result",
        action="append",
        default=[],
        metavar="[SET/]METRIC=DATASET:TASK",
        help="also write a metric as the result of a benchmark of the hub, such as accuracy=owner/benchmark:default (default: none)",
    )
    parser.add_argument("--dry-run", action="store_true", help="only verify and list what would be uploaded, without any connection")
    parser.add_argument(
        "-d", "--directory", "--folder", type=Path, default=Path(), help="folder of the workflow (default: the current one)"
    )
    args = parser.parse_args()
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", args.to):
        parser.error(f"--to: {args.to} is not the name of a repository. Write USER/NAME, such as me/my-model.")
    if not args.directory.is_dir():
        parser.error(f"--directory: {args.directory} is no folder")
    os.chdir(args.directory)
    hide_in_tracebacks()
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # read when huggingface_hub is imported
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        upload = planned(args.run, args.to, args.result)
        print(described(upload, args.private, args.revision), flush=True)
        if args.dry_run:
            print("Nothing was uploaded (--dry-run).")
        else:
            send(upload, args.private, args.revision)
    except KeyboardInterrupt:
        print("Interrupted. The same command goes on: what has arrived is not sent twice.", file=sys.stderr)
        return 130
    return 0


@dataclass(frozen=True)
class Upload:
    repository: str
    files: dict[str, Path | bytes]  # by their name in the repository
    message: str  # of the commit
    notes: list[str]


def planned(run: str, repository: str, wanted: list[str]) -> Upload:
    """What is uploaded, and what is told before. Exits if the selection is missing, incomplete or changed."""
    selection, names = selected_model(Path("results"), run)
    folder = selection.folder / MODEL
    evaluations = evaluations_of(selection)
    verify(*evaluations, wanted=lambda name: name.endswith("_results.json"))
    figures = figures_in(metadata(run, {}, {}, None, results_in(evaluations)))
    metric = read_result(selection, "selection.json")["metric"]
    split = next((split for split in ("test", "dev") if metric in figures.get(split, {})), None)
    figure = f"{split} {metric} {rounded(figures[split][metric], 4)}" if split else f"selected by {metric}, without an evaluation"
    about = read_if_intact(selection.folder.with_name("training") / "run.json", "the commit of the code is not named") or {}
    git = about.get("git") or {}
    code = f"code {(git.get('commit') or 'unknown')[:12]}{' with uncommitted changes' * bool(git.get('dirty'))}"
    files: dict[str, Path | bytes] = {name.removeprefix(MODEL): selection.folder / name for name in names}
    own, others = own_files(about.get("code", {})), {path.name for path in folder.iterdir()} - set(files)
    adapters = any(name.startswith("adapter/") for name in selection.files)
    notes = {f"{split}: {', '.join(f'{name} {rounded(value, 4)}' for name, value in figures[split].items())}": True for split in figures}
    notes |= {
        "There are no results of an evaluation: a card has the figures of the training alone.": not figures,
        "It is no model of transformers (there is no config.json), and uploaded as it is.": "config.json" not in files,
        f"The adapters are merged into these weights; {selection.folder / 'adapter'}, for peft, is not uploaded.": adapters,
        f"Code of yours is not uploaded: {', '.join(own)}.": bool(own),
        f"Not uploaded, since the selection did not write it: {shortened(sorted(others), 10)}.": bool(others),
        f"There is no model card: {folder / CARD} is missing.": CARD not in files,
    }
    if CARD in files:
        files[CARD] = card_for(repository, folder, figures)
        notes[f"{CARD}: where it loads {folder}, it will load {repository}."] = files[CARD] != (folder / CARD).read_bytes()
    if wanted:
        files[RESULTS] = benchmark_results(wanted, figures, max((made.finished for made in evaluations), default=0.0))
    return Upload(repository, files, f"{run}: {figure}, {code}", [note for note, applies in notes.items() if applies])


def described(upload: Upload, private: bool, revision: str | None) -> str:
    sizes = {name: len(it) if isinstance(it, bytes) else it.stat().st_size for name, it in upload.files.items()}
    listed = [f"  {name.ljust(max(map(len, sizes)))}  {size:15,} bytes" for name, size in sizes.items()]
    seen = "private" if private else "public, unless it is there and private, or its owner's default is private"
    where = f"{upload.repository}{f', branch {revision}' if revision else ''} ({seen})"
    head = f"{len(sizes)} files, {sum(sizes.values()):,} bytes, for {where}:"
    return "\n".join([head, *listed, *upload.notes, f"Commit: {upload.message}"])


def figures_in(head: JsonObject) -> dict[str, dict[str, float]]:
    """The metrics of each set in the first block of a model card."""
    found = [result for index in head.get("model-index") or [] for result in index["results"]]
    return {each["dataset"].get("split", each["dataset"]["name"]): {it["type"]: it["value"] for it in each["metrics"]} for each in found}


def card_for(repository: str, folder: Path, figures: dict[str, dict[str, float]]) -> bytes:
    """The model card, whose example loads the model from the repository. It is in no manifest, so its figures are compared with the evaluations."""
    import yaml
    from huggingface_hub import metadata_load

    try:
        found = figures_in(metadata_load(folder / CARD) or {})
    except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError):
        found = None
    if found != figures:
        advice = f"Correct it, or delete {folder.parents[1] / 'evaluation'} and start snakemake, which writes both again."
        raise SystemExit(f"{folder / CARD}: its first block does not have the metrics of the evaluation. {advice}")
    text = (folder / CARD).read_text(encoding="utf-8")
    return text.replace(f'"{folder}/', '"').replace(f'"{folder}"', f'"{repository}"').encode()


def benchmark_results(wanted: list[str], figures: dict[str, dict[str, float]], finished: float) -> bytes:
    """In the format of the hub for benchmarks that are registered there, as its client writes it."""
    import yaml
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    known = {f"{split}/{name}": value for split, metrics in figures.items() for name, value in metrics.items()} | figures.get("test", {})
    entries = []
    for text in wanted:
        if not (found := RESULT.fullmatch(text)) or found["metric"] not in known:
            there = ", ".join(known) or "none, since there is no evaluation"
            raise SystemExit(f"--result: {text} is not METRIC=OWNER/DATASET:TASK with a metric of this model. It has: {there}.")
        day = datetime.fromtimestamp(finished, UTC).date().isoformat()
        entries.append(EvalResultEntry(found["dataset"], found["task"], known[found["metric"]], date=day))
    return yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False).encode()


def send(upload: Upload, private: bool, revision: str | None) -> None:
    import huggingface_hub

    if huggingface_hub.constants.HF_HUB_OFFLINE:
        raise SystemExit("HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set, so nothing can be uploaded. Unset it for this command.")
    try:
        if not (token := huggingface_hub.get_token()):
            raise SystemExit(f"There is no token of the Hugging Face hub. {LOGIN}")
        os.environ["HF_TOKEN"] = token  # also that of a file is hidden from now on
        commit(huggingface_hub.HfApi(token=token), upload, private, revision)
    except Exception as error:  # of the hub, of its client, or of the network below them
        raise SystemExit(hidden(" ".join(explained(error, upload.repository).split()))) from None


def commit(api: "HfApi", upload: Upload, private: bool, revision: str | None) -> None:
    """In one commit: the files, without those that are there already, and without what is left of an earlier upload."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    api.whoami()  # tells a wrong token from a repository that is not there
    name = upload.repository
    open_repository(api, name, private, revision)
    before = api.model_info(name, revision=revision)
    there = {each.rfilename for each in before.siblings or []} - set(upload.files) - {".gitattributes"}
    old = {file for file in there if any(fnmatch.fnmatch(file, pattern) for pattern in OURS)}
    for what, files in {"Deleted in this commit, since it is of an earlier upload": old, "Stays there": there - old}.items():
        if files:
            print(f"{what}: {shortened(sorted(files), 10)}.", flush=True)
    added = [CommitOperationAdd(file, content) for file, content in upload.files.items()]
    deleted = [CommitOperationDelete(file) for file in sorted(old)]
    made = api.create_commit(name, [*added, *deleted], commit_message=upload.message, revision=revision)
    address = f"{api.endpoint}/{name}{f'/tree/{revision}' if revision else ''}"
    print(f"{address} has these files already: nothing was changed." if made.oid == before.sha else f"Uploaded: {address}")


def open_repository(api: "HfApi", name: str, private: bool, revision: str | None) -> None:
    """Make the repository, and its branch, unless they are there."""
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        known = api.model_info(name)
    except RepositoryNotFoundError:
        for kind in ("dataset", "space"):
            if api.repo_exists(name, repo_type=kind):
                print(f"There is a {kind} {name} already, which stays; the model gets a repository of its own.")
        api.create_repo(name, private=private or None, exist_ok=True)
    else:
        if private and not known.private:
            raise SystemExit(f"{name} is there and public. Make it private in its settings, or name another repository.")
        print(f"{name} is there already, and {'private' if known.private else 'public'}.")
    if revision:
        api.create_branch(name, branch=revision, exist_ok=True)


def explained(error: BaseException, repository: str) -> str:
    """What to do about it."""
    import httpx2
    from huggingface_hub import constants

    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) and cause not in causes:
        causes.append(cause)
    answer = next((each for each in causes if getattr(each, "response", None) is not None), None)
    if answer is None and any(isinstance(each, httpx2.TransportError | ConnectionError) for each in causes):
        return f"{constants.ENDPOINT} cannot be reached ({causes[-1]}). Check the network, and HF_ENDPOINT and HTTPS_PROXY if they are set. {AGAIN}"
    if answer is None:
        return f"{repository}: the upload failed ({type(error).__name__}: {error}). Correct that. {AGAIN}"
    response: Any = answer.response  # type: ignore[attr-defined]
    status, said = response.status_code, getattr(answer, "server_message", None) or response.reason_phrase
    advice = {
        401: f"The token is wrong, or has expired. {LOGIN}",
        403: f"The token may not write to {repository}. Correct --to, or use a token that may. {LOGIN}",
        404: "There is no such repository, owner or branch, or the token may not see it. Correct --to and --revision.",
    }.get(status, "Correct what it names.")
    if status in (409, 412, 429) or status >= 500:
        advice = f"Wait some minutes. {AGAIN}"
    return f"{repository}: the hub answers {status} ({said}). {advice}"


if __name__ == "__main__":
    sys.exit(main())
