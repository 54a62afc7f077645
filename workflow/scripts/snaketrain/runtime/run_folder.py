"""The folder of a training: which training it belongs to, and what it was started with."""

import platform
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from snaketrain.runtime import strict_json
from snaketrain.runtime.credentials import hidden
from snaketrain.runtime.journal import as_line, attempts_in, events_named, read_events
from snaketrain.runtime.loaded_code import RECORDED, UNSTEADY, changed_files, loaded_files
from snaketrain.runtime.manifests import PRIVATE_FILE, DigestCache, Manifest, damage, digest, private, read_if_intact, write_checked
from snaketrain.runtime.ownership import end_previous_owner, is_ours, sign
from snaketrain.runtime.provenance import all_installed, differing, git_state, write_provenance
from snaketrain.runtime.ranks import Ranks
from snaketrain.runtime.stages import Job, by_name, previous_manifest, versions_of
from snaketrain.runtime.strict_json import JsonObject, shortened

# fields of `train`: settings that change the losses by rounding only, as tests/distributed shows
EXECUTION_ONLY = ("strategy", "accumulate")
RESUMABLE = ("train.", "select.", "code.")  # of what may change in the middle of a training if the user asks for it
LOADED = "loaded.json"  # what own code has loaded and read: only a finished training has a manifest that says so
MICROBATCHES = "microbatches.json"  # into how many a batch is split since the memory ran out


def deciding_settings(settings: JsonObject) -> JsonObject:
    """Those that decide a training, of which an unfinished one may resume with any others. An own strategy may compute anything."""
    train: JsonObject = settings["train"]
    if "." in train["strategy"]["use"]:
        return settings
    return settings | {"train": {name: value for name, value in train.items() if name not in EXECUTION_ONLY}}


def fingerprint(job: Job, inputs: dict[str, str]) -> str:
    """Identifies a training, however it is executed."""
    return digest("train", deciding_settings(job.given.settings), planned_code(job.given.code), inputs)


def planned_code(code: Mapping[str, str]) -> dict[str, str]:
    """Without what a finished result has recorded, which nobody knows of a training that was set aside or is not finished."""
    return {name: now for name, now in code.items() if not name.startswith(RECORDED)}


def differing_names(theirs: JsonObject, ours: JsonObject) -> list[str]:
    """The names of settings, or of code, that are not the same in both."""
    return [name for name in sorted({**theirs, **ours}) if (name in theirs, theirs.get(name)) != (name in ours, ours.get(name))]


def differing_settings(theirs: JsonObject, ours: JsonObject) -> list[str]:
    """`train.learning_rate 0.001 there, 0.01 here`, for each setting that differs."""
    there, here = ({name: strict_json.dumps(value) for name, value in by_name(each).items()} for each in (theirs, ours))
    return [f"{name} {there.get(name, 'missing')} there, {here.get(name, 'missing')} here" for name in differing_names(there, here)]


def take_over(job: Job, inputs: dict[str, str], resume_changed: bool = False, clean: bool = False, same_versions: bool = False) -> Job:
    """Make the folder this training's: end a process that a killed workflow left behind, and set aside another training's files.

    `resume_changed`: continue an unfinished training whose code or settings have changed; what is returned then says so. `clean`: never
    continue such a one. `same_versions`: begin anew where packages have other versions than a finished training was made with.
    """
    end_previous_owner(job.folder)
    made = previous_manifest(job.folder)
    if job.given.changed_code and not (made and made.identity == job.identity(inputs)):  # a certificate is of one result
        recorded = {name: now for name, now in job.given.code.items() if name.startswith(RECORDED)}
        job = replace(job, given=replace(job.given, code=job.given.changed_code | recorded, changed_code={}))
    mixed = prepare_run_folder(job, inputs, resume_changed, clean, same_versions)
    sign(job.folder)
    move_damaged_checkpoints(job.folder)
    return replace(job, mixed=mixed)


def prepare_run_folder(job: Job, inputs: dict[str, str], resume_changed: bool, clean: bool, same_versions: bool) -> list[JsonObject]:
    """Make sure that the folder belongs to this training; the results of another one are moved aside, never deleted.

    Other settings, code or data mean another training. Returns the changes in the middle of this one, which the user has asked to continue.
    """
    folder = job.folder
    made = previous_manifest(folder)
    is_this_one = made is not None and made.identity == job.identity(inputs)
    if made and is_this_one and (message := damaged_log(made)):
        raise SystemExit(message)
    before = read_about(folder)
    if before is None or (made and is_this_one and before["identity"] != made.identity):
        if not is_this_one and last_saved(folder):
            why = "its run.json is missing, damaged or of an earlier version, so that nothing says which training this is"
            set_aside(folder, {"started": time.time(), "fingerprint": "unknown"}, why)
        folder.mkdir(parents=True, exist_ok=True)
        return []
    finished, mixed, step = _finished(folder), list(before.get("mixed", [])), last_saved(folder)
    changed = what_changed(before, job, inputs) + ([] if made else changed_own_code(job))
    upgraded = differing(versions_of(made)) if same_versions and finished and made else {}
    if finished and not changed:
        changed = [*execution_changes(before, job), *upgraded]
    names = shortened(changed, most=6)
    resumes = resume_changed and not finished and step > 0 and all(each.startswith(RESUMABLE) for each in changed)
    if clean and mixed:
        set_aside(folder, before, "its code or settings were changed in its middle, and this training is to be compared or shared")
    elif changed and not resumes:
        remedy = " To continue it nevertheless: --config 'compute={resume_changed: true}'." if step and not finished and not clean else ""
        set_aside(folder, before, f"belonged to other settings or code ({names})", remedy)
    elif changed:
        mixed.append({"step": step, "changed": changed})
        (folder / LOADED).unlink(missing_ok=True)
        print(f"warning: {folder}: continues from step {step} with other {names}, as compute.resume_changed asks for. Its result is that of neither",
              file=sys.stderr, flush=True)  # fmt: skip
        return mixed
    else:
        return mixed
    folder.mkdir(parents=True, exist_ok=True)
    return []


def read_about(folder: Path) -> JsonObject | None:
    """run.json; None where it is missing, damaged, or of an earlier version."""
    about = read_if_intact(folder / "run.json", "it is written again")
    return about if about and "fingerprint" in about else None


def what_changed(before: JsonObject, job: Job, inputs: dict[str, str]) -> list[str]:
    """The names of settings, code and inputs that are not those of the training in a folder; empty if it is this one."""
    if before["fingerprint"] == fingerprint(job, inputs):
        return []
    there, here = (by_name(of_training(deciding_settings(settings))) for settings in (before["settings"], job.given.settings))
    code = [f"code.{name}" for name in differing_names(planned_code(before["code"]), planned_code(job.given.code))]
    read = [f"inputs.{role}" for role in differing_names(before["inputs"], inputs)]
    return [*code, *read, *differing_names(there, here)] or ["the version of snaketrain"]


def execution_changes(before: JsonObject, job: Job) -> list[str]:
    """The names of code and settings that say how a training is computed, and are not those of the one in a folder."""
    both = (settings["train"] for settings in (before["settings"], job.given.settings))
    there, here = (by_name({"train": {name: train.get(name) for name in EXECUTION_ONLY}}) for train in both)
    return [*(f"code.{name}" for name in differing_names(before["code"], job.given.code)), *differing_names(there, here)]


def of_training(settings: JsonObject) -> JsonObject:
    """The sections of run.json that are not of its data."""
    return {section: value for section, value in settings.items() if section != "data"}


def loaded_by(folder: Path) -> dict[str, str]:
    """What own code has loaded and read, of a training that has finished, or as far as it got."""
    made = previous_manifest(folder)
    return made.loaded if made else loaded_so_far(folder)


def loaded_so_far(folder: Path) -> dict[str, str]:
    """In all attempts until the last checkpoint: a later one need not load again what its steps follow from."""
    found = read_if_intact(folder / LOADED, "what its own code has read is not compared")
    return found["loaded"] if found else {}


def record_loaded(folder: Path, loaded: Mapping[str, str]) -> None:
    write_checked(folder / LOADED, {"loaded": dict(loaded)})


def changed_own_code(job: Job) -> list[str]:
    """What an unfinished training has loaded or read and has changed since, besides what the plan's digests cover."""
    return [f"code.{RECORDED}{name})" for name in changed_files(loaded_by(job.folder)) if name not in job.given.code]


def recorder_of_loaded(folder: Path) -> Callable[[JsonObject], None]:
    """For the events of a journal: with each checkpoint, what own code has loaded by then, in earlier attempts too.

    What has changed while it was read stays as it was before, and is left out if that is not known.
    """
    cache, recorded = DigestCache(folder / ".loaded", ""), loaded_so_far(folder)

    def record(event: JsonObject) -> None:
        if event["event"] == "checkpoint":
            loaded = recorded | {name: digest for name, digest in loaded_files(cache).items() if digest != UNSTEADY}
            if loaded != recorded:
                recorded.update(loaded)
                record_loaded(folder, loaded)

    return record


def set_aside(folder: Path, before: JsonObject, why: str, remedy: str = "") -> None:
    began = time.strftime("%Y%m%d-%H%M%S", time.localtime(before["started"]))
    aside = folder.parent / "superseded" / f"{folder.name}-{began}-{before['fingerprint'][:6]}"
    aside.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)
    print(f"warning: {folder}: {why}; moved to {aside}, and begins anew.{remedy}", file=sys.stderr, flush=True)


def last_saved(folder: Path) -> int:
    """The step of the newest checkpoint; 0 if there is none."""
    return max((int(path.name.removeprefix("step-")) for path in folder.glob("checkpoints/step-*")), default=0)


def microbatches_that_fit(folder: Path) -> int:
    """In how many microbatches a rank computes a batch since the memory ran out; 0 if it never did."""
    found = read_if_intact(folder / MICROBATCHES, "batches are split as train.accumulate says until the memory runs out again")
    return int(found["microbatches"]) if found else 0


def move_damaged_checkpoints(folder: Path) -> None:
    """If checkpoints of a finished training are missing or changed, move the first of them and all later ones aside, so that their steps are repeated."""
    if not (made := previous_manifest(folder)) or not (found := damage(made, lambda name: name.startswith("checkpoints/"))):
        return
    first = Path(min(found)).parent.name
    aside = folder.parent / "superseded" / f"{folder.name}-{time.strftime('%Y%m%d-%H%M%S')}-checkpoints"
    aside.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("checkpoints/step-*"):
        if path.name >= first:
            path.rename(aside / path.name)
    Path(made.path).unlink()  # makes it an unfinished training, which resumes
    print(f"warning: {folder / min(found)}: {found[min(found)]}; the steps from there on are repeated ({aside} has the old checkpoints)",
          file=sys.stderr, flush=True)  # fmt: skip


def damaged_log(made: Manifest) -> str | None:
    """What to do where the journal of a finished training is not what was written: nothing but the training could write it again."""
    if not (found := damage(made, lambda name: name in made.logs)):
        return None
    (name, what), remedy = next(iter(found.items())), f"Put a copy of it back, or move {made.folder} away to train again."
    return f"{made.folder / name}: {what}. The curves, speed and times of the training are read from it. {remedy}"


def _finished(folder: Path) -> bool:
    return any(end["status"] == "FINISHED" for end in events_named(folder / "journal.jsonl", "end"))


def end_of_journal(folder: Path) -> int:
    """The offset at which the next attempt starts writing."""
    journal = folder / "journal.jsonl"
    return journal.stat().st_size if journal.is_file() else 0


def stopped_by(folder: Path, since: int) -> list[str]:
    """The signals that stopped the attempt that began at this offset; none if it finished or was killed."""
    events = read_events(folder / "journal.jsonl", since)[0]
    last = events[-1] if events else {}
    return last.get("signals", []) if last.get("status") == "STOPPED" else []


def record_start(job: Job, inputs: dict[str, str], data: Manifest, started: float, labels: JsonObject, execution: JsonObject) -> None:
    """Write run.json: what is known at the start, for MLflow, the comparison, and to reproduce a training.

    `labels`: what the settings do not say, such as the run's name, the paths of the manifests by role, and notes.
    """
    import torch

    git = git_state()
    write_provenance(job.folder, git["dirty"], job.given.code)
    content = {
        "fingerprint": fingerprint(job, inputs),
        "code": job.given.code,
        "identity": job.identity(inputs),
        "started": started,
        "mixed": list(job.mixed),
        "versions": all_installed(),
        "settings": job.given.settings | data.settings,
        "inputs": inputs,
        "threads": torch.get_num_threads(),
        "data": {
            "path": data.path,
            "content": data.content,
            "name": data.facts["name"],
            "examples": data.facts["splits"]["train"]["examples"],
        },
        "git": git,
        "environment": {"python": platform.python_version(), "torch": torch.__version__, "host": platform.node(), **execution},
        **labels,
        **{name: hidden(labels[name]) for name in ("experiment", "notes")},
    }
    write_checked(job.folder / "run.json", content, mode=PRIVATE_FILE)


def record_failure(folder: Path, cause: str) -> None:
    """Write the last line of a failed training's journal, on rank 0."""
    if Ranks.of_environment().rank == 0 and is_ours(folder) and (folder / "run.json").exists():
        path = folder / "journal.jsonl"
        last = {
            "event": "end",
            "status": "FAILED",
            "error": hidden(cause[:2000]),
            "time": time.time(),
            "attempt": max(1, attempts_in(path)),
        }
        with open(path, "a", encoding="utf-8", opener=private) as journal:
            journal.write(as_line(last))
