"""The section `lm_eval`: on which tasks of the harness the selected model is scored, and how."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field

from snaketrain.config.schema.base import NotNegative, OneOrMore, Positive, Section, from_here
from snaketrain.config.schema.evaluation import bad_file_name

if TYPE_CHECKING:
    from snaketrain.config.schema import Settings


class LmEval(Section):
    """Standard tasks for language models, by [lm-evaluation-harness](https://github.com/EleutherAI/lm-evaluation-harness)."""

    tasks: Annotated[list[str], OneOrMore] = Field(
        [], description="names of tasks, which YAML files in `folder` define; each is a set of its own"
    )
    folder: Annotated[str, AfterValidator(from_here)] = Field(
        "lm_eval_tasks", description="the folder of the tasks' YAML files, as for `--include_path` of the harness", min_length=1
    )
    limit: Positive | None = Field(None, description="only the first examples of each task, to try it; null: all")
    fewshot: NotNegative | None = Field(None, description="solved examples in front of each question; null: as the task says, else none")
    chat_template: bool = Field(False, description="whether questions are written as chats, by the template of the model's tokenizer")
    batch_size: Positive = Field(8, description="requests at a time; up to rounding, the figures do not depend on it")


SECTIONS: dict[str, tuple[Any, Any]] = {"lm_eval": (LmEval, LmEval())}


def lm_eval_of(run: "Settings") -> LmEval:
    found: LmEval = run.lm_eval  # type: ignore[attr-defined]  # a section of SECTIONS
    return found


def contradictions(run: "Settings") -> Iterator[str]:
    given = lm_eval_of(run)
    for name in given.tasks:
        yield from bad_file_name("lm_eval.tasks", name)
    if twice := [name for number, name in enumerate(given.tasks) if name in given.tasks[:number]]:
        yield f"lm_eval.tasks names {twice[0]!r} twice: remove one of them"
    changed = [name for name, field in LmEval.model_fields.items() if getattr(given, name) != field.default]
    if not given.tasks and changed:
        yield f"lm_eval.{changed[0]} has no effect without lm_eval.tasks: name some, or remove it"
