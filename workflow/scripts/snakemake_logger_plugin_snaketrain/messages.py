"""Snakemake's messages in fewer words: chatter is left out, of a reason the essence is kept, an error loses its traceback."""

import ast
import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress

CHATTER = (
    "Building DAG of jobs",
    "Select jobs to execute",
    "Execute ",
    "Using shell:",
    "host: ",
    "Assuming unrestricted shared filesystem usage",
    "Group jobs: inactive",
    "Complete log(s):",
    "Exiting because a job execution failed",
    "Removing output files of failed job",
    "Removing temporary output",
    "Shutting down, this might take some time",
    "Finished jobid",
    "Elapsed time:",
    "SLURM run ID:",
    "Both 'sacctmgr' and 'sshare' returned empty results",  # for each job, on a cluster without accounting
)
COMMAND_FAILED = re.compile(
    r"Command .* (returned non-zero exit status -?\d+|died with <Signals\.\w+: \d+>)\.", re.S
)  # of which the job's own error says more
INTERRUPTED = "Terminating processes on user request"
INTERRUPTED_AGAIN = "Interrupted again: what still runs ends without being waited for. The same command goes on; what is finished is kept."
FAILED = "At least one job did not complete successfully."
PLACE = re.compile(r"^\w*(?:Error|Exception)(?: in (?:rule \w+)?(?: in )?(?:file \".*\", line \d+)?)?:$")
FRAME = re.compile(r"^ +File \".*\", line \d+, in ")
WRAPPED = re.compile(r"^Error:\n  \w+: (.*?)(?=^Wildcards:$|\Z)", re.M | re.S)  # an exception in a function of a rule
NO_RULE = re.compile(r"^No rule to produce (.*) \(if you use input functions", re.M)
SUBMITTED = re.compile(r"Job (\S+) has been submitted with SLURM jobid (\S+) \(log: (.*)\)\.$")
PARAMS_CHANGED = "Params have changed since last execution"
# what Snakemake shows of params: texts as Python writes them, those of now after those before; then other reasons
PARAMS = re.compile(r"""(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<now> now: )|(?P<end>; [A-Z])""")
REASON = re.compile(rf"^    reason: .*{PARAMS_CHANGED}.*$", re.M)
REASONS = {
    "Forced execution": "as requested",
    "Incomplete output files": "was interrupted",
    "Updated input files": "its input changed",
    "Set of input files has changed": "it reads other inputs",
    "Code has changed": "its rule changed",
    "Software environment definition": "its software environment changed",
}


def is_chatter(text: str) -> bool:
    return text.strip().startswith(CHATTER) or not text.strip()


def shorten_second_interrupt(record: logging.LogRecord) -> bool:
    """Of Ctrl-C while Snakemake waits for jobs that the first one ends: three tracebacks, the last ones about event loops."""
    if str(record.msg).startswith("Traceback (most recent call last):") and "\nKeyboardInterrupt\n" in str(record.msg):
        record.msg = INTERRUPTED_AGAIN
    return True


def jobs_to_do(stats: Mapping[str, int]) -> str:
    """`7 jobs: fetch_data 1, ...`, without the rule `all`, which runs nothing."""
    total = number_of_jobs(stats)
    return f"{total} job{'s' if total > 1 else ''}: {', '.join(f'{rule} {number}' for rule, number in jobs_in(stats).items())}"


def jobs_in(stats: Mapping[str, int]) -> dict[str, int]:
    return {rule: number for rule, number in stats.items() if rule not in ("all", "total")}


def number_of_jobs(stats: Mapping[str, int]) -> int:
    return sum(jobs_in(stats).values())


def short_reason(reason: str) -> str:
    """Why a job runs again; nothing if it runs for the first time, or follows another one."""
    found = [short for words, short in REASONS.items() if words in reason]
    if PARAMS_CHANGED in reason:
        names = dict.fromkeys("code" if name.startswith("code.") else name for name in changed_settings(reason))
        found.append(f"{', '.join(names) or 'a setting'} changed")
    return f"({'; '.join(found)})" if found else ""


def with_changes(job: str) -> str:
    """Snakemake's text of a job in a dry run, in which its reason names what changed, instead of all settings of the section."""
    return REASON.sub(lambda line: _with_changes(line[0]), job)


def _with_changes(reason: str) -> str:
    changed, end = _params_changed(reason)
    lines = [f"\n        {name}: {as_text(before)} -> {as_text(now)}" for name, (before, now) in changed.items()]
    return "".join([reason[: reason.find(PARAMS_CHANGED)], PARAMS_CHANGED, reason[end:], *lines]) if lines else reason


def as_text(value: object) -> str:
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


def changed_settings(reason: str) -> dict[str, tuple[object, object]]:
    """Before and now, by the names of the settings and pieces of code that changed; None where there was or is none."""
    return _params_changed(reason)[0]


def _params_changed(reason: str) -> tuple[dict[str, tuple[object, object]], int]:
    """The same, and where in the text the params end."""
    before: dict[str, object] = {}
    now: dict[str, object] = {}
    side, end = before, len(reason)
    for token in PARAMS.finditer(reason, max(0, reason.find(PARAMS_CHANGED))):
        if token["text"]:
            side.update(_settings_in(token["text"]))
        elif token["now"]:
            side = now
        else:
            end = token.start()
            break
    names = [name for name in sorted({**before, **now}) if before.get(name) != now.get(name)]
    return {name: (before.get(name), now.get(name)) for name in names}, end


def _settings_in(text: str) -> Iterator[tuple[str, object]]:
    """Of a param, whose text is `name: JSON`; Snakemake shows its representation in Python."""
    from snaketrain.runtime.stages import by_name  # other workflows do without

    name, _, value = str(ast.literal_eval(text)).partition(": ")
    with suppress(ValueError):  # a param of another kind
        content = json.loads(value)
        of_code = name == "code" and isinstance(content, dict)
        yield from ((f"code.{file}", digest) for file, digest in content.items()) if of_code else by_name({name: content}).items()


def plain_error(text: str) -> str:
    """An error without the place in Snakemake's files that it passed through."""
    if wrapped := WRAPPED.search(text):
        return wrapped[1].strip()
    if missing := NO_RULE.search(text):
        return (
            f"No rule makes {missing[1]}. Ask for a file, such as results/runs/<run>/selection/manifest.json, or for a rule such as `all`."
        )
    lines = [line for line in text.splitlines() if not FRAME.match(line) and not PLACE.match(line)]
    return "\n".join(lines).strip() or text
