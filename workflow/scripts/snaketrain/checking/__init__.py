"""Checks runs by effect before any job: what they name is imported, made and tried on tensors without memory.

What is found is said at once: code that is run may end the process at any moment.
"""

import re
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeVar

from snaketrain.config.references import NotFound
from snaketrain.config.schema import Settings
from snaketrain.runtime.loaded_code import is_own
from snaketrain.runtime.strict_json import JsonObject

Made = TypeVar("Made")
SAYS_WHERE = re.compile(rf"({'|'.join(Settings.model_fields)})[\w. ]*[:. ]")  # how messages of the project begin
NEEDS_GPU = re.compile(r"CUDA|NVIDIA|cuda")  # in a message: the machine of the workflow need not have a GPU
LONGEST = 300  # characters of a foreign message


class Unknown(Exception):
    """It cannot be known here: what would need more memory, time or files than a check may take."""


class Findings:
    """`say` gets each finding as JSON. `skipped`: the attempts, as `place use`, that ended an earlier process."""

    def __init__(self, say: Callable[[JsonObject], None], skipped: Collection[str] = ()):
        self.say, self.skipped = say, set(skipped)
        self.run = ""
        self.problems: list[str] = []
        self.earlier = 0  # problems, of other runs

    def begin(self) -> None:
        """The next run: what is wrong with others does not concern it."""
        self.earlier = len(self.problems)

    def is_wrong(self, where: str) -> bool:
        """Whether this place of the run, or what is below it, is known to be wrong: trying it would say so again."""
        return any(f"{problem.partition(':')[0]}.".startswith(f"{where}.") for problem in self.problems[self.earlier :])

    def report(self, *problems: str) -> bool:
        """Whether there are none."""
        for problem in problems:
            self.problems.append(problem)
            self.say({"run": self.run, "problem": problem})
        return not problems

    def attempt(self, where: str, use: str, make: Callable[[], Made], remedy: str = "Correct it") -> Made | None:
        """What `make` returns; None where it fails, which is reported as the fault of `use`."""
        if f"{where} {use}" in self.skipped or self.is_wrong(where):
            return None
        self.say({"run": self.run, "attempt": where, "use": use})
        try:
            return make()
        except Unknown:
            return None
        except NotFound as error:
            self.report(f"{where}: {error}" + ("" if str(error).endswith("?") else "."))
        except SystemExit as error:
            text = str(error.code)
            said = SAYS_WHERE.match(text)
            self.report(text if said else f"{where}: `{use}` ends the process by SystemExit({error.code!r}). Raise an exception instead.")
        except BaseException as error:
            if NEEDS_GPU.search(str(error)):
                return None
            self.report(f"{where}: `{use}`: {described(error)}. {remedy}.")
        return None


def described(error: BaseException) -> str:
    """What was raised and, where a user's own file raised it, at which line."""
    text = " ".join(str(error).split())
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
    own = [each for each in traceback.extract_tb(error.__traceback__) if is_own(each.filename)]
    place = f" ({shown(own[-1].filename)}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {text}{place}" if text else f"{type(error).__name__}{place}"


def shown(file: str) -> str:
    here = Path.cwd()
    return str(Path(file).relative_to(here)) if Path(file).is_relative_to(here) else file
