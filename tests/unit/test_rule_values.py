"""What rules are given: plain where all jobs agree, else a function that Snakemake can call as it calls its own."""

from snakemake.common import get_input_function_aux_params
from snakemake.iocontainers import Wildcards

from snaketrain.orchestration.rule_values import untracked, varying

SMALL = Wildcards(fromdict={"run": "small"})


def test_a_value_on_which_all_agree_is_no_function():
    assert varying(["small", "large"], lambda name: 4) == 4


def test_what_looks_like_a_wildcard_is_a_function_of_which_snakemake_takes_the_result_as_it_is():
    assert varying(["small", "large"], lambda name: 'data.text="{run}"')(SMALL) == 'data.text="{run}"'


def test_values_that_differ_are_found_by_the_wildcard():
    assert varying(["small", "large"], {"small": 1, "large": 2}.get)(SMALL) == 1


def test_none_stays_a_function():
    """Snakemake takes no None for a resource, but takes a function's None for "not asked for"."""
    assert varying(["small"], lambda name: None)(SMALL) is None


def test_untracked_params_take_input_for_which_snakemake_does_not_compare_them():
    command = untracked(lambda stage, wildcards, input, output, threads: f"{stage} {wildcards.run} {input} {output} {threads}", "train")
    given = {"input": "a.txt", "output": "b.txt", "threads": 3}
    assert get_input_function_aux_params(command, given) == given
    assert command(SMALL, **given) == "train small a.txt b.txt 3"
