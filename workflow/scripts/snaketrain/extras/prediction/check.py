"""Finds problems of the section `predict` before any job: files and columns that are missing, text that cannot be generated."""

from collections.abc import Iterator

from snaketrain.config.errors import placed_in
from snaketrain.config.schema import Settings
from snaketrain.data.cells import BadData
from snaketrain.data.fetching import source_files
from snaketrain.data.reading import check_columns, readable
from snaketrain.extras.prediction.settings import inputs_of
from snaketrain.orchestration.named_code import TASKS, takes_generate, without_generation
from snaketrain.orchestration.preflight import files


def relevant_to(run: Settings) -> object:
    return run.data, inputs_of(run), run.train.task, run.train.strategy


def problems_of_run(run: Settings) -> Iterator[str]:
    yield from without_text(run)
    yield from unreadable(run)


def without_text(run: Settings) -> Iterator[str]:
    """Inputs for which text is to be generated, by a task or strategy that cannot."""
    task, data = run.train.task.use, run.data
    needed = f"predict: the data has data.{'target' if data.target else 'messages'}, so that" if data.target or data.messages else ""
    for name, inputs in inputs_of(run).items():
        if not inputs.asks_for_text(data):
            continue
        if not takes_generate(task) and (needed or inputs.generate):
            yield f"{needed or f'predict.{name}.generate:'} text is generated, which train.task {task} cannot. Use one of {', '.join(TASKS)}, or remove it."
        elif takes_generate(task) and (why := without_generation(run.train.strategy)):
            yield f"predict.{name}: {why}"


def unreadable(run: Settings) -> Iterator[str]:
    """Inputs whose files or columns are missing."""
    for name, inputs in inputs_of(run).items():
        if inputs.hub:
            continue
        problems = list(files(f"predict.{name}", inputs.source))
        if not problems and not inputs.is_remote:
            reading = inputs.reading(run.data, inputs.asks_for_text(run.data) and takes_generate(run.train.task.use))
            try:
                further = [("id", inputs.id)] if inputs.id else []
                problems = check_columns(reading, "input", readable(source_files(inputs.source), reading), further=further)
            except BadData as error:
                problems = [str(error)]
        yield from (placed_in(f"predict.{name}", problem) for problem in problems)
