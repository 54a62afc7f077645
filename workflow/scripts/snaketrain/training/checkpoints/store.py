"""The checkpoints of a training: saved in the background, the last and the best kept, the last intact one restored."""

import math
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from snaketrain.runtime.manifests import write_json
from snaketrain.runtime.ranks import Background
from snaketrain.runtime.run_folder import differing_settings
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.training.checkpoints.formats import Sharded, WholeTensors, Write, load_checkpoint
from snaketrain.training.checkpoints.publishing import (
    ERRORS,
    LISTING,
    becomes_visible,
    damage,
    mend,
    publish,
    publish_again,
    read_listing,
    remove,
)
from snaketrain.training.checkpoints.ranking import (
    AVERAGES,
    STATE,
    WEIGHTS,
    CheckpointState,
    Selection,
    best_first,
    evaluated,
    is_sharded,
    read_state,
)  # fmt: skip
from snaketrain.training.plan import folder_name
from snaketrain.training.state import Stateful, TrainState

DAMAGED = "damaged-"  # of what was set aside


class Checkpoints:
    def __init__(
        self,
        folder: Path,
        selection: Selection,
        keep_best: int,
        format: WholeTensors | Sharded | None = None,
        check: Callable[[], object] = lambda: None,
        branch_steps: Sequence[int] = (),
        settings: JsonObject | None = None,
        continues_others: bool = False,
    ):
        """`settings`: those that decide the training; a checkpoint of others is refused, unless this training `continues_others`. `check` raises where nothing may be written any more: the folder may have been taken over while a checkpoint was written.

        `branch_steps`: where other trainings continue from this one; the checkpoints of these steps stay, and all that such a training
        would have kept by then.
        """
        self.folder, self.format, self.check = folder, format or WholeTensors(), check
        self.branch_steps = branch_steps
        self.settings, self.continues_others = settings or {}, continues_others
        self.selection, self.keep_best = selection, keep_best
        self._background, self._newly_saved = Background(), list[int]()
        self.restored: CheckpointState | None = None

    @property
    def evaluated(self) -> bool:
        """Whether the restored checkpoint has metrics."""
        return self.restored is not None and self.restored["metrics"] is not None

    @property
    def taken_over(self) -> bool:
        """Whether the restored checkpoint is another training's, whose settings were removed from it."""
        return self.restored is not None and "settings" not in self.restored

    def save(
        self, state: TrainState, metrics: dict[str, float] | None, stateful: dict[str, Stateful], ended: str = "",
        callbacks: dict[str, JsonObject] | None = None,
    ) -> None:  # fmt: skip
        """All ranks take part; writing continues in the background. `ended`: why a callback has ended the training here; `callbacks`: what they say of it."""
        self.finish()
        if write := self.format.collect(state, stateful):
            scaler = state.strategy.scaler.state_dict()
            facts = CheckpointState(step=state.step, metrics=metrics, scaler=scaler, settings=self.settings)
            if ended:
                facts["ended"] = ended
            if callbacks:
                facts["callbacks"] = callbacks
            self._background.start(partial(self._write, write, facts, state.rank == 0))

    def finish(self) -> None:
        """Wait for the checkpoint that is being written, and raise its error if there was one."""
        self._background.finish()

    def newly_saved(self) -> list[int]:
        """The steps whose checkpoints were completed since the last call."""
        self._background.raise_error()
        steps, self._newly_saved = self._newly_saved, []
        return steps

    def _write(self, write: Write, facts: CheckpointState, first: bool) -> None:
        final = self.folder / folder_name(facts["step"])

        def write_all(beside: Path) -> list[Path]:
            written = write(beside)
            if first:
                write_json(beside / STATE, facts)
                self.check()
            return [*written, beside / STATE] if first else written

        try:
            publish(final, write_all, self.format.group)
            if first:
                self._prune()
        except ERRORS as error:
            raise SystemExit(
                f"{final}: the checkpoint cannot be saved: {error}. Earlier ones are intact. Make room or repair the folder, and run the same "
                "command again: it resumes from the last of them."
            ) from error
        if first:
            self._newly_saved.append(facts["step"])

    def _prune(self) -> None:
        """Keep the last and the best, and those of the steps at which other trainings continue."""
        *earlier, _last = self.found()
        ranked = best_first(evaluated(self.folder), self.selection.metric, self.selection.mode)
        kept = {self.folder / folder_name(step) for step in self.branch_steps}
        for until in (*self.branch_steps, math.inf):
            kept |= {each.path for each in [each for each in ranked if each.step <= until][: self.keep_best]}
        for path in earlier:
            if path not in kept:
                remove(path)
        mend(self.folder)

    def found(self) -> list[Path]:
        return sorted(self.folder.glob("step-*"))

    def metrics(self) -> dict[str, dict[str, float] | None]:
        """The metrics of the checkpoints that are kept, by step."""
        states = map(read_state, self.found())
        return {str(state["step"]): state["metrics"] for state in states}

    def files_to_select(self, above: Path) -> dict[str, str]:
        """The files that later stages read of the checkpoints that are kept, with the digests of what was written.

        Of an earlier checkpoint nobody has read them since, so that their present content proves nothing.
        """
        names = ("*.safetensors", f"{WEIGHTS}/*", f"{AVERAGES}/*", "task.memory.pt", STATE)
        found = {}
        for checkpoint in self.found():
            listing = read_listing(checkpoint) or {}
            for path in (path for name in names for path in checkpoint.glob(name)):
                written = listing.get(str(path.relative_to(checkpoint)))
                found[str(path.relative_to(above))] = written["sha256"] if written else f"not in {LISTING}"
        return found

    def restore(self, state: TrainState, stateful: dict[str, Stateful]) -> int:
        """Load the last intact checkpoint, whatever its format; the step it was saved at, 0 if there is none."""
        self.finish()
        if state.rank == 0:
            mend(self.folder)
        path = self._last_intact(state)
        if path is None:
            return 0
        saved = read_state(path)
        self._refuse_others(saved)
        load_checkpoint(state, stateful, path)
        self.restored = saved
        if saved["scaler"]:
            state.strategy.scaler.load_state_dict(saved["scaler"])
        return int(saved["step"])

    def _refuse_others(self, saved: CheckpointState) -> None:
        """A training that silently continued under other settings would have the results of neither."""
        if "settings" in saved and not self.continues_others and (changed := differing_settings(saved["settings"], self.settings)):
            raise SystemExit(
                f"{self.folder.parent}: holds a training with other settings, at step {saved['step']}: {'; '.join(changed)}. Train in another folder, or move this "
                "one away. To continue it with the new settings, pass TrainerOptions(resume_changed=True): it is then a training of neither."
            )

    def load(self, state: TrainState, step: int, stateful: dict[str, Stateful]) -> None:
        """The weights of a step, to evaluate them. All ranks take part."""
        load_checkpoint(state, stateful, self.folder / folder_name(step))

    def set_metrics(self, step: int, metrics: dict[str, float]) -> None:
        """Rank 0 alone."""
        path = self.folder / folder_name(step)
        self.check()
        publish_again(path, path, {**read_state(path), "metrics": metrics})
        mend(self.folder)

    def _last_intact(self, state: TrainState) -> Path | None:
        """Rank 0 chooses for all, since a shared file system may not show every rank the same files at the same time.

        What several ranks have written, several verify, each its share of the files, once rank 0 has found its own intact.
        """
        strategy, found = state.strategy, self.found() if state.rank == 0 else []
        rank, ranks = strategy.data_parallel_rank, strategy.data_parallel_size
        while True:
            newest = found.pop() if found else None
            message = damage(newest, 0, ranks if is_sharded(newest) else 1) if newest else None
            path, message = strategy.all_gather_object((newest, message))[0]
            if path is None:
                return None
            if not message and not becomes_visible(path / LISTING):
                raise SystemExit(f"{path}: rank {state.rank} does not see this checkpoint. All nodes need the same file system.")
            if not message and is_sharded(path):
                messages = strategy.all_gather_object(damage(path, rank, ranks) if rank else None)
                message = next(filter(None, messages), None)
            if not message:
                return path
            if state.rank == 0:
                set_aside(path, message)


def set_aside(path: Path, message: str) -> None:
    """A damaged checkpoint must not be taken for the last or the best one when the training continues from an earlier one."""
    aside = path.with_name(f"{DAMAGED}{path.name}")
    print(
        f"warning: {path} is damaged ({message}), and now {aside.name}, which you may delete; trying the one before",
        file=sys.stderr,
        flush=True,
    )
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
