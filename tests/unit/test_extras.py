"""A folder in `snaketrain/extras/` adds a section, settings in other ones, contradictions, checks, stages and a command; without it they are not known."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "workflow/scripts"
BASE = {
    "data": {"train": {"path": "train.csv"}, "tokenizer": {"path": "tokenizer"}},
    "model": {"use": "transformers.BertForSequenceClassification"},
}
EXTRA = {
    "__init__.py": 'COMMANDS = {"greet": ("greet.py", "greet each run")}\n',
    "settings.py": """
from pydantic import Field

from snaketrain.config.schema.base import Section


class Greeting(Section):
    words: str = Field("hello", description="what is said")


SECTIONS = {"greeting": (Greeting | None, Field(None, description="how runs are greeted"))}
FIELDS = {
    "data": {"tone": (int | None, Field(None, le=5, exclude_if=lambda value: value is None, description="of the texts"))},
    "tracking": {"told_to": (str, Field("all", description="who hears of a run"))},
}


def contradictions(run):
    if run.greeting and run.train.seed == 13:
        yield "greeting is for the lucky, but train.seed is 13: use another"
    if run.data.tone == 0 and run.tracking.told_to == "all":
        yield "data.tone is 0, but tracking.told_to is all: name one"
""",
    "check.py": """
def relevant_to(run):
    return run.greeting


def problems_of_run(run):
    if run.greeting and run.greeting.words == "boo":
        yield "greeting.words: boo is not polite. Say hello."


def problems(runs):
    return [f"greeting: nobody answered (run {name})" for name, run in runs.items() if run.greeting and run.greeting.words == "anybody"]
""",
    "stages.py": """
from pathlib import Path

from snaketrain.orchestration.stage import Stage


class Greet(Stage):
    name, folder = "greet_run", "runs/{}/greeting"

    @property
    def jobs(self):
        return [name for name, run in self.pipeline.runs.items() if run.greeting]

    def jobs_of(self, run):
        return [run] if run in self.jobs else []

    def settings(self, job):
        return {"greeting": self.pipeline.runs[job].greeting.as_json}

    @property
    def script(self):
        return Path(__file__).with_name("greet.py")

    def adds(self, stage, job):
        return {"greeted": [self.manifest(job)]} if stage == "select_checkpoint" else {}

    def adds_code(self, stage, job):
        return [self.script] if stage == "select_checkpoint" and job in self.jobs else []


STAGES = (Greet,)
""",
    "greet.py": "from snaketrain.extras.polite.settings import Greeting\n",
}
EXAMINE = """
import json, sys
from snaketrain.config.errors import ConfigurationError
from snaketrain.orchestration.preflight import examine
for config in json.loads(sys.argv[1]):
    try:
        print(json.dumps([*examine(config)]))
    except ConfigurationError as error:
        print(json.dumps(error.problems))
"""
RESULTS = """
import json, sys
from snaketrain.orchestration.pipeline import Pipeline
pipeline = Pipeline(json.loads(sys.argv[1]), reads_files=False)
print(json.dumps([pipeline.results("default"), vars(pipeline.stages["greet_run"].planned("default"))]))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    """A copy of the library with one extra, made here."""
    folder = tmp_path_factory.mktemp("library")
    shutil.copytree(SCRIPTS / "snaketrain", folder / "snaketrain", ignore=shutil.ignore_patterns("__pycache__", "extras"))
    (folder / "snaketrain/extras").mkdir()
    shutil.copy(SCRIPTS / "snaketrain/extras/__init__.py", folder / "snaketrain/extras")
    return with_extra(folder)


def with_extra(library: Path) -> Path:
    (folder := library / "snaketrain/extras/polite").mkdir()
    for name, text in EXTRA.items():
        (folder / name).write_text(text)
    return library


@pytest.fixture
def project(tmp_path, tiny_tokenizer) -> Path:
    (tmp_path / "train.csv").write_text("text,label\n" + "".join(f"film {i},{i % 2}\n" for i in range(40)))
    (tmp_path / "tokenizer").symlink_to(tiny_tokenizer)
    return tmp_path


def python(library: Path, project: Path, program: str, *words: str) -> list[list]:
    """What a program prints, a JSON list on each line."""
    environment = os.environ | {"PYTHONPATH": str(library)}
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, cwd=project, env=environment)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def examined(library: Path, project: Path, *changes: dict) -> list[list[str]]:
    return python(library, project, EXAMINE, json.dumps([BASE | change for change in changes]))


def test_its_section_is_accepted_and_its_problems_are_reported_with_those_of_the_core(library, project):
    impolite = {"greeting": {"words": "boo"}, "runs": {"a": {"train.seed": 1}, "b": {"train.seed": 2}, "c": {"select.metric": "accurcy"}}}
    accepted, misspelt, contradicting, both, later = examined(
        library,
        project,
        {"greeting": {"words": "good morning"}},
        {"greeting": {"wrods": "hello"}},
        {"greeting": {}, "train": {"seed": 13}},
        impolite,
        {"greeting": {"words": "anybody"}},
    )
    assert accepted == ["default"]
    assert misspelt[0].startswith("greeting.wrods: no such setting. Did you mean 'words'?")
    assert contradicting == ["greeting is for the lucky, but train.seed is 13: use another."]
    assert "greeting.words: boo is not polite. Say hello. (run a)" in both, "once, for runs that share the setting"
    assert len(both) == 2 and any(problem.startswith("select.metric: ") or "accurcy" in problem for problem in both)
    assert later == ["greeting: nobody answered (run default)"]


READ = """
import json, sys
from snaketrain.config.runs import read_runs
from snaketrain.config.schema import Data, Settings
runs = read_runs(json.loads(sys.argv[1]))
print(json.dumps([[run.data.tone, run.tracking.told_to, run.data.as_json.get("tone", "left out")] for run in runs.values()]))
print(json.dumps([Data.model_validate(run.data.as_json) == run.data for run in runs.values()]))
print(json.dumps([*Settings.model_fields]))
"""


def test_its_settings_in_sections_of_the_core_are_read_like_others(library, project):
    """Also where the section is not given, and by scripts, which read a section by its class."""
    data = BASE["data"]
    toned = {"data": data | {"tone": 3}, "tracking": {"told_to": "me"}}
    values, again, sections = python(library, project, READ, json.dumps(BASE | {"runs": {"a": {}, "b": toned}}))
    assert values == [[None, "all", "left out"], [3, "me", 3]] and again == [True, True]
    assert sections[0] == "data" and sections[-2:] == ["tracking", "greeting"], "the sections of the core stay where they are"


def test_errors_in_its_settings_of_sections_of_the_core_are_told_like_others(library, project):
    data = BASE["data"]
    large, misspelt, contradicting = examined(
        library, project, {"data": data | {"tone": 6}}, {"tracking": {"told_too": "me"}}, {"data": data | {"tone": 0}}
    )
    assert large == ["data.tone: expects a number less than or equal to 5, not 6."]
    assert misspelt[0].startswith("tracking.told_too: no such setting. Did you mean 'told_to'?")
    assert contradicting == ["data.tone is 0, but tracking.told_to is all: name one."]


def test_it_cannot_take_the_place_of_a_setting_of_the_core(library, project):
    settings = library / "snaketrain/extras/polite/settings.py"
    settings.write_text(EXTRA["settings.py"].replace('"tone": (', '"label": ('))
    try:
        with pytest.raises(AssertionError, match="TypeError: snaketrain.extras.polite.settings: Data has label already"):
            examined(library, project, {})
    finally:
        settings.write_text(EXTRA["settings.py"])


def test_its_stage_belongs_to_a_runs_results(library, project):
    ((results, planned),) = python(library, project, RESULTS, json.dumps(BASE | {"greeting": {}}))
    assert "results/runs/default/greeting/manifest.json" in results
    assert [*planned["settings"]["greeting"]] == ["words"]
    assert [*planned["code"]] == ["snaketrain.extras.polite.greet"], "no declarations"
    ((results, _),) = python(
        library, project, RESULTS.replace('vars(pipeline.stages["greet_run"].planned("default"))', "[]"), json.dumps(BASE)
    )
    assert "results/runs/default/greeting/manifest.json" not in results


@pytest.mark.parametrize("module", ["extras.polite.settings", "extras.polite.stages", "config.schema", "orchestration.pipeline"])
def test_its_modules_may_be_imported_first(library, project, module):
    program = (
        f"import json, snaketrain.{module}; from snaketrain.config.schema import Settings; print(json.dumps([*Settings.model_fields]))"
    )
    assert python(library, project, program)[0][-1] == "greeting"


def test_deleted_it_is_not_known(library, project):
    shutil.rmtree(library / "snaketrain/extras/polite")
    try:
        accepted, unknown, without = examined(library, project, {}, {"greeting": {}}, {"data": BASE["data"] | {"tone": 3}})
    finally:
        with_extra(library)
    assert accepted == ["default"] and unknown[0].startswith("greeting: no such section.")
    assert without[0].startswith("data.tone: no such setting.")


ADDED = """
import json, sys
from snaketrain.orchestration.pipeline import Pipeline
pipeline = Pipeline(json.loads(sys.argv[1]), reads_files=False)
for stage in ("select_checkpoint", "train_model"):
    print(json.dumps([pipeline.added(stage, "default"), [file.name for file in pipeline.added_code(stage, "default")]]))
"""


def test_it_adds_inputs_and_code_to_jobs_of_other_stages(library, project):
    selection, training = python(library, project, ADDED, json.dumps(BASE | {"greeting": {}}))
    assert selection == [{"greeted": ["results/runs/default/greeting/manifest.json"]}, ["greet.py"]]
    assert training == [{}, []]


def test_its_command_is_listed(library, project):
    program = "import json, snaketrain.cli as cli; print(json.dumps([*cli.commands()]))"
    assert "greet" in python(library, project, program)[0]
