"""Why a job failed: the error and the traceback that its log ends with, or the end that the journal of a training records."""

import re
from pathlib import Path

from snaketrain.runtime.journal import PROGRESS, read_events

FROM_LAUNCHERS = re.compile(r"\[?[EWI]\d{4}[ :]|srun: error: |[=-]+$")  # messages of launchers that end the other processes after an error
EXCEPTION = re.compile(r"(?!torch\.distributed\.elastic)[\w.]*(Error|Exception|Interrupt|NotFound)\b")
KILLED = re.compile(r"killed by SIG\w+$")  # as keep_log.py ends a log
KILLER = re.compile(r"the kernel killed .*|rank \d+ was killed by .*")  # who knows more of it
INTERRUPTED = ("KeyboardInterrupt", "interrupted")  # by Ctrl-C, before a stage has begun and later
TRACEBACK = "Traceback (most recent call last):"
LAST_BYTES = 65_536  # read from the end of a journal, which may be long
LONGEST_TRACEBACK = 40  # lines; the log has all of it
TIME = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ")


def last_error(log: Path, folder: Path) -> str:
    """The error that a job ended with, from its log, or from the journal of a training."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"it left no {log}; Snakemake's own messages say why"
    messages = [line for line in _lines(text) if line.strip() and not FROM_LAUNCHERS.match(line) and not PROGRESS.match(line)]
    if messages and KILLED.match(messages[-1]):
        return one_line(_killed(messages))
    journal = folder / "journal.jsonl"
    events = read_events(journal, max(0, journal.stat().st_size - LAST_BYTES))[0] if journal.is_file() else []
    if events and events[-1]["event"] == "end":
        end = events[-1]
        reason = one_line(end.get("error") or f"stopped by {', '.join(end.get('signals', []))} at step {end['step']}")
        if reason.removesuffix("...") in text:  # otherwise it is from an earlier attempt
            return reason
    found = one_line(next((line for line in reversed(messages) if EXCEPTION.match(line)), messages[-1] if messages else f"{log} is empty"))
    return "stopped by SIGINT" if found in INTERRUPTED else found


def _killed(messages: list[str]) -> str:
    *before, killed = messages
    killer = next((match[0] for line in reversed(before[-3:]) if (match := KILLER.search(line))), None)
    return killed if killer is None else killer if killed in killer else f"{killed}: {killer}"


def last_traceback(log: Path, error: str) -> list[str]:
    """The lines of the last traceback in a log that ends with this error, if there is one."""
    try:
        lines = _lines(log.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return []
    message = error.removesuffix("...")
    for end in range(len(lines) - 1, 0, -1):
        if EXCEPTION.match(lines[end]) and (lines[end].strip() in message or message in lines[end]):
            start = next((number for number in range(end, -1, -1) if lines[number].startswith(TRACEBACK)), end)
            return lines[max(start, end - LONGEST_TRACEBACK) : end + 1] if start < end else []
    return []


def _lines(text: str) -> list[str]:
    return [TIME.sub("", line) for line in text.splitlines()[1:]]  # the first line is the command


def one_line(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "no message")
    return line if len(line) <= 500 else line[:497] + "..."
