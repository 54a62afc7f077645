"""What a prediction needs besides the weights: a file in the folder of the selected checkpoint, so that the folder can be copied elsewhere."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from snaketrain.config.schema import Data, Model, Train
from snaketrain.runtime.manifests import Manifest, write_json
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.training.batch_limits import BatchLimits

FILE = "snaketrain.json"


@dataclass(frozen=True)
class TrainedModel:
    run: str
    settings: JsonObject  # the sections data, model and train; passwords are concealed
    facts: JsonObject  # about the training data, such as the names of the classes
    precision: str
    at_once: JsonObject | None = None  # what its training evaluated at once on each rank; not in folders of earlier versions

    @classmethod
    def of(cls, training: Manifest, data: Manifest) -> "TrainedModel":
        facts = training.facts
        limits = BatchLimits.of_finished(training.folder, Train.model_validate(training.settings["train"]))
        # without what extras do in the preparation: the folder may be read where they are not there
        reading = {name: value for name, value in data.settings["data"].items() if name not in Data.of_extras}
        return cls(facts["run"], training.settings | {"data": reading}, data.facts, facts["precision"], asdict(limits))

    @classmethod
    def read(cls, folder: Path) -> "TrainedModel":
        path = folder / FILE
        try:
            found = cls(**json.loads(path.read_text(encoding="utf-8")))
            if not isinstance(found.settings, dict):
                raise ValueError("it is of an earlier version of snaketrain")
            return found
        except (OSError, ValueError, TypeError) as error:
            raise SystemExit(
                f"{path}: cannot be read ({error}). Name the folder `selection/model` of a finished run, or a copy of it."
            ) from None

    def write(self, folder: Path) -> None:
        write_json(folder / FILE, asdict(self))

    @property
    def limits(self) -> BatchLimits:
        return BatchLimits(**self.at_once) if self.at_once else BatchLimits(64, self.train.batch_tokens)

    @property
    def data(self) -> Data:
        return Data.model_validate(self.settings["data"])

    @property
    def model(self) -> Model:
        return Model.model_validate(self.settings["model"])

    @property
    def train(self) -> Train:
        return Train.model_validate(self.settings["train"])
