"""Values of rules: plain if all jobs share them, otherwise functions that Snakemake can call."""

from snakemake.common import get_input_function_aux_params
from snakemake.iocontainers import Wildcards

from snaketrain.orchestration.rule_values import untracked, varying

SMALL = Wildcards(fromdict={"run": "small"})


def test_a_value_that_all_share_is_not_a_function():
    assert varying(["small", "large"], lambda name: 4) == 4


def test_a_value_like_a_wildcard_is_a_function_whose_result_snakemake_uses_literally():
    assert varying(["small", "large"], lambda name: 'data.text="{run}"')(SMALL) == 'data.text="{run}"'


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
