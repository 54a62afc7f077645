"""Settings as `key=json` strings, which Snakemake compares, manifests contain and MLflow records; and the JSON file that passes them to a job.

Its name has their digest: a repeated command means the same, and workflows with other settings do not interfere. The files are in `.snakemake`, like
Snakemake's metadata: a job's own folder may be moved aside by a training that starts over.
"""

import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from snaketrain.runtime import strict_json
from snaketrain.runtime.manifests import PRIVATE_FILE, digest, write_text
from snaketrain.runtime.strict_json import Json, JsonObject


def join(key: str, value: Json) -> str:
    return f"{key}={json.dumps(value, ensure_ascii=False)}"


def split(string: str) -> tuple[str, Json]:
    key, _, value = string.partition("=")
    return key, json.loads(value)


def by_key(strings: Iterable[str]) -> JsonObject:
    return dict(map(split, strings))


def flattened(name: str, value: Json) -> list[tuple[str, Json]]:
    """Each setting below a section with its dotted key; a mapping whose keys are not all identifiers is one value."""
    if isinstance(value, dict) and value and all(key.isidentifier() for key in value):
        return [pair for key, inner in value.items() for pair in flattened(f"{name}.{key}", inner)]
    return [(name, value)]


def nested(strings: Iterable[str]) -> JsonObject:
    """The nested sections of `key=json` strings."""
    sections: JsonObject = {}
    for key, value in map(split, strings):
        *parents, last = key.split(".")
        section = sections
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    return sections


FOLDER = Path(".snakemake/snaketrain-settings")
CODE = "code."
UNUSED_DAYS = 30  # after which a file is removed


@dataclass(frozen=True)
class JobSettings:
    stage: str
    settings: list[str]  # `key=json`
    code: list[str]  # `code.module=digest`

    @classmethod
    def of(cls, stage: str, strings: Iterable[str]) -> "JobSettings":
        strings = list(strings)
        return cls(stage, [each for each in strings if not each.startswith(CODE)], [each for each in strings if each.startswith(CODE)])

    def path(self, name: str = "", folder: Path = FOLDER) -> Path:
        return folder / self.stage / f"{name.replace('/', '-') or self.stage}-{digest(self.settings, self.code)}.json"

    def store(self, name: str = "", folder: Path = FOLDER) -> Path:
        path, text = self.path(name, folder), strict_json.with_checksum(self._content())
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            write_text(path, text, PRIVATE_FILE)
        else:
            with suppress(OSError):
                os.utime(path)  # it is used
        return path

    def _content(self) -> JsonObject:
        code = dict(string.removeprefix(CODE).rsplit("=", 1) for string in self.code)
        return {"stage": self.stage, "settings": nested(self.settings), "code": code}

    @classmethod
    def read(cls, path: str | Path, stage: str | None = None) -> "JobSettings":
        """`stage`: refuse the settings of any other stage."""
        try:
            content = strict_json.checked(Path(path).read_text(encoding="utf-8"))
            settings = [join(*pair) for section, value in content["settings"].items() for pair in flattened(section, value)]
            found = cls(content["stage"], settings, [f"{CODE}{name}={digest}" for name, digest in content["code"].items()])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise SystemExit(f"{path}: not a readable settings file ({error!r}). Start the workflow, which writes it.") from None
        if stage and found.stage != stage:
            raise SystemExit(f"{path}: contains the settings of {found.stage}, not of {stage}.")
        return found


def settings_words(output: Path, stage: str, strings: Iterable[str]) -> list[str]:
    """`--settings` for a stage script that is started without Snakemake; the file is written beside the folder of its output."""
    return ["--settings", str(JobSettings.of(stage, strings).store(folder=output.parent / "settings"))]


def remove_unused(folder: Path = FOLDER) -> None:
    """Remove the files that no job was started with for a while. Jobs still in a queue need none: each writes its own when it starts."""
    oldest = time.time() - UNUSED_DAYS * 24 * 3600
    for path in folder.glob("*/*"):
        with suppress(OSError):  # another workflow removes it too, or may only read here
            if path.stat().st_mtime < oldest:
                path.unlink()
