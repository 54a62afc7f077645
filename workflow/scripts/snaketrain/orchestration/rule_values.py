"""What rules are given that may differ from job to job, in the form that is cheapest for Snakemake.

It calls a function a dozen times for each job, and finds out its signature each time: with a thousand runs that was a third of
a dry run. So a value on which all jobs agree is no function, and functions say their signature.
"""

import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")

TAKES_WILDCARDS = inspect.signature(lambda wildcards: None)
TAKES_ALL = inspect.signature(lambda wildcards, input, output, threads: None)


def varying(names: Iterable[str], value: Callable[[str], T]) -> T | Callable[..., T]:
    """The value for each run, data set or model: itself where it is the same for all and holds nothing that looks like a wildcard."""
    values = {name: value(name) for name in names}
    first = next(iter(values.values()), None)
    if first is not None and "{" not in str(first) and all(each == first for each in values.values()):
        return first
    return with_signature(TAKES_WILDCARDS, lambda wildcards: values[wildcards[0]])


def untracked(value: Callable[..., str], *arguments: object) -> Callable[..., str]:
    """A param that makes nothing stale: Snakemake does not compare what functions of `input` return."""

    def param(wildcards: Any, input: Any, output: Any, threads: int) -> str:
        return value(*arguments, wildcards, input, output, threads)

    return with_signature(TAKES_ALL, param)


def with_signature(signature: inspect.Signature, function: Callable[..., T]) -> Callable[..., T]:
    function.__signature__ = signature  # type: ignore[attr-defined]  # which inspect.signature reads of any function
    return function
