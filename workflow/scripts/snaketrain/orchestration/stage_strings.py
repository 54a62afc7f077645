"""What makes the result of each job stale: `key=json` for each setting, and digests of code and of local files."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from snaketrain.orchestration.code_digest import SCRIPTS, code_strings
from snaketrain.orchestration.rule_values import varying
from snaketrain.orchestration.stages import Stage


class StageStrings:
    def __init__(self, stages: Mapping[str, Stage], reads_files: bool):
        self.stages, self.reads_files = stages, reads_files
        self._known: dict[tuple[str, str], list[str]] = {}
        self._digests: dict[tuple[Path, ...], list[str]] = {}

    def of(self, stage: str, job: str) -> list[str]:
        """`key=json` for each setting and each piece of code that a job's result depends on."""
        if (stage, job) not in self._known:
            self._known[stage, job] = self.stages[stage].settings(job) + self._code(self.stages[stage], job)
        return self._known[stage, job]

    def _code(self, stage: Stage, job: str) -> list[str]:
        key = (SCRIPTS / f"{stage.script}.py", *stage.own_code(job))  # the points of a sweep run the same code
        if key not in self._digests:
            self._digests[key] = code_strings(*key)
        return self._digests[key]

    def params(self, stage: str) -> list[str | Callable[[Sequence[str]], str]]:
        """The strings as params of a rule: a value where all its jobs share it, a function of the wildcards where they differ.

        Snakemake compares params as a set of values. With one value per setting, which includes the setting's name, it notices
        every change and shows the old and the new value.
        """
        strings = {job: [*self.of(stage, job), *self._local_files(stage, job)] for job in self.stages[stage].jobs}
        everywhere = set.intersection(*map(set, strings.values())) if strings else set()
        shared = {string for string in everywhere if "{" not in string}  # Snakemake would look for wildcards in braces
        # a job with fewer strings than others repeats one of its own, which changes nothing in a set
        differing = {name: [string for string in found if string not in shared] or found[:1] for name, found in strings.items()}

        def item(number: int) -> str | Callable[[Sequence[str]], str]:
            def string(name: str) -> str:
                own = differing[name]
                return own[min(number, len(own) - 1)]

            return varying(differing, string)

        return [*sorted(shared), *map(item, range(max(map(len, differing.values()), default=0)))]

    def _local_files(self, stage: str, job: str) -> Iterable[str]:
        return self.stages[stage].local_files(job) if self.reads_files else []
