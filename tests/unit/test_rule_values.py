"""Values of rules: plain if all jobs share them, otherwise functions that Snakemake can call."""

import re

from snakemake.common import get_input_function_aux_params
from snakemake.io import apply_wildcards
from snakemake.iocontainers import Wildcards

from snaketrain.config.runs import TOP_LEVEL
from snaketrain.config.schema import Data
from snaketrain.orchestration.code_digest import SCRIPTS
from snaketrain.orchestration.pipeline import Pipeline
from snaketrain.orchestration.rule_values import untracked, varying

SMALL = Wildcards(fromdict={"run": "small"})


def test_a_value_that_all_share_is_not_a_function():
    assert varying(["small", "large"], lambda name: 4) == 4


def test_a_value_like_a_wildcard_is_a_function_whose_result_snakemake_uses_literally():
    assert varying(["small", "large"], lambda name: 'data.text="{run}"')(SMALL) == 'data.text="{run}"'


def test_settings_that_all_share_are_not_a_function():
    text = 'data: {"text": "text", "labels": {}}'
    assert varying(["small", "large"], lambda name: text) == text == apply_wildcards(text, SMALL)


def test_values_that_differ_are_found_by_the_wildcard():
    assert varying(["small", "large"], {"small": 1, "large": 2}.get)(SMALL) == 1


def test_none_stays_a_function():
    """Snakemake refuses None as a resource, but reads a function's None as "not requested"."""
    assert varying(["small"], lambda name: None)(SMALL) is None


def test_snakemake_does_not_compare_untracked_params():
    command = untracked(lambda job: f"train {job}")
    given = {"input": "a.txt"}
    assert get_input_function_aux_params(command, given) == given
    assert command(SMALL, **given) == "train small"


def test_each_rule_compares_all_that_decides_its_results():
    """Snakemake cannot notice a change of what its rule leaves out of the params."""
    data = {"train": {"path": "train.csv"}, "test": {"path": "test.csv"}, "tokenizer": {"path": "tokenizer"}}
    data |= {"shards": 2, "labels": {"0": "no", "1": "yes"}} if "shards" in Data.of_extras else {}
    config = {"data": data, "select": {"metric": "loss"}, "train": {"early_stopping": {"patience": 2}}}
    config |= {"sweeps": {"rate": {"train.learning_rate": [0.1, 0.2, 0.3]}}}
    of_extras = {
        "evaluation_sets": {"further": {"path": "further.csv"}},
        "predict": {"new": {"path": "new.csv"}},
        "search": {"rate": {"rungs": [0.5]}},
    }
    config |= {section: value for section, value in of_extras.items() if section in TOP_LEVEL}
    pipeline = Pipeline(config, reads_files=False)
    rules = "\n".join(path.read_text() for path in SCRIPTS.parent.rglob("*.smk"))
    compared: dict[str, set[str]] = {}
    for stage, section in re.findall(r'pipeline\.section\("(\w+)", "(\w+)"\)', rules):
        compared.setdefault(stage, set()).add(section)
    for stage in pipeline.stages.values():
        decide = {section for job in stage.jobs for section in stage.settings(job)}
        assert decide <= compared.get(stage.name, set()), f"of {stage.name}"
        assert f'pipeline.code("{stage.name}")' in rules
        assert not any(map(stage.sources, stage.jobs)) or f'pipeline.local_files("{stage.name}")' in rules
    assert len([stage for stage in pipeline.stages.values() if list(stage.jobs)]) >= 9, "all of the core, and most of extras, have jobs"
