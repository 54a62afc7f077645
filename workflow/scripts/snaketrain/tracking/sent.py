"""What MLflow already knows about a run, kept beside it in `.mlflow.json`. If it is lost, everything is sent again."""

from dataclasses import asdict, dataclass, field
from pathlib import Path

from snaketrain.evaluation.comparing import standing
from snaketrain.runtime.manifests import write_checked
from snaketrain.runtime.strict_json import JsonObject
from snaketrain.tracking.tracked import read_json

FILE = ".mlflow.json"


@dataclass
class Sent:
    uri: str
    run_id: str
    offset: int = 0  # in the journal
    high_water: dict[str, int] = field(default_factory=dict)
    standing: JsonObject | None = None
    status: str | None = None
    done: dict[str, str] = field(default_factory=dict)  # by what is sent once: a digest of its content

    @classmethod
    def read(cls, training: Path, uri: str, run_id: str) -> "Sent":
        """Empty if the file is about another run or database, or was written by another version of this code."""
        try:
            sent = cls(**(read_json(training / FILE) or {}))
        except TypeError:
            return cls(uri, run_id)
        journal = training / "journal.jsonl"
        shrunk = sent.offset > (journal.stat().st_size if journal.is_file() else 0)
        foreign = (sent.uri, sent.run_id) != (uri, run_id)
        old = sent.standing is not None and sent.standing.keys() != standing([]).keys()
        return cls(uri, run_id) if shrunk or foreign or old else sent

    def write(self, training: Path) -> None:
        write_checked(training / FILE, asdict(self))


def has_ended(training: Path, sent: JsonObject) -> bool:
    """Whether the journal says so and was read to its end."""
    journal = training / "journal.jsonl"
    heard_all = journal.is_file() and journal.stat().st_size <= sent.get("offset", 0)
    return heard_all and (sent.get("standing") or {}).get("status", "RUNNING") != "RUNNING"
