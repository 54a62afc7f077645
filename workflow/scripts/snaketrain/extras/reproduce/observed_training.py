"""Runs a training's script and records which of some lines it executes: `observed_training.py LINES.json SCRIPT ...`.

`LINES.json` has the lines, by file; beside it, `LINES.executed` gets one line for each that is executed by any process, `FILE:NUMBER`. Once all
are, nothing is observed any longer.
"""

import json
import os
import runpy
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any


class Observer:
    """A trace function. Of the functions that have none of the lines, only the calls are seen."""

    def __init__(self, path: Path):
        self.waiting = {(file, line) for file, lines in json.loads(path.read_text(encoding="utf-8")).items() for line in lines}
        self.files = {file for file, _ in self.waiting}
        self.known: dict[CodeType, bool] = {}
        # one write for a line, so that those of several processes do not mix, also of forked ones
        self.executed = os.open(path.with_suffix(".executed"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def __call__(self, frame: FrameType, event: str, _: Any) -> "Observer | None":
        code = frame.f_code
        if (observes := self.known.get(code)) is None:
            in_file = code.co_filename in self.files
            observes = self.known[code] = in_file and any((code.co_filename, line) in self.waiting for *_, line in code.co_lines())
        if not observes:
            return None
        if event == "line" and (place := (code.co_filename, frame.f_lineno)) in self.waiting:
            self.waiting.discard(place)
            os.write(self.executed, f"{place[0]}:{place[1]}\n".encode())
            if not self.waiting:
                sys.settrace(None)
        return self


def main() -> None:
    _, lines, script, *_ = sys.argv
    sys.argv = sys.argv[2:]
    sys.path[0] = str(Path(script).parent)
    observer = Observer(Path(lines))
    threading.settrace(observer)
    sys.settrace(observer)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
