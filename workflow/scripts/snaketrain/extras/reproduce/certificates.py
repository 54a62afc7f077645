"""Which changed code is certified to give a training's results. `snaketrain certify` writes the certificates, into the folders of the trainings."""

from dataclasses import replace
from pathlib import Path

from snaketrain.runtime.manifests import read_if_intact
from snaketrain.runtime.stages import JobSettings, previous_manifest

FILE = "certified.json"


def as_certified(folder: Path, planned: JobSettings) -> JobSettings | None:
    """The plan with the code that a training was made with, if that of the plan is certified for it; else None."""
    if not (folder / FILE).is_file():
        return None
    certificate, made = read_if_intact(folder / FILE, "the code counts as changed"), previous_manifest(folder)
    if not certificate or not made or (made.identity, made.settings) != (certificate["identity"], planned.settings):
        return None
    is_certified = planned.code.items() <= certificate["now"].items()
    return replace(planned, code=certificate["then"], changed_code=planned.code) if is_certified else None
