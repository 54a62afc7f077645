"""What the journal of a training says: its curves, how long it took, its status and its warnings."""

from collections.abc import Iterable

from snaketrain.runtime.journal import Event
from snaketrain.runtime.strict_json import JsonObject, shortened

MOST_WARNINGS = 20  # of a training, the last ones
Curves = dict[str, list[tuple[int, float]]]  # steps and values by name


def points(events: Iterable[Event], high_water: dict[str, int]) -> list[tuple[str, float, float, int]]:
    """New points as (name, value, time, step). `high_water`, the last step seen by name, is updated.

    Steps are repeated if a training resumes from an earlier checkpoint. For training metrics the first attempt's point is kept; for
    evaluations the later attempt's, since those before it, after the checkpoint, are of weights that were lost.
    """
    found: list[tuple[str, float, float, int]] = []
    for event in events:
        if event.get("event") == "attempt" and "resume_step" in event:
            last = event["resume_step"] or -1  # nothing is saved at step 0, so its evaluation is repeated
            found = [point for point in found if not point[0].startswith("eval/") or point[3] <= last]
            high_water |= {name: min(step, last) for name, step in high_water.items() if name.startswith("eval/")}
        if event.get("event") not in ("train", "eval", "system"):
            continue
        for name, value in (event.get("metrics") or {}).items():
            name = f"{event['event']}/{name}"
            if isinstance(value, bool) or not isinstance(value, int | float) or event["step"] <= high_water.get(name, -1):
                continue
            high_water[name] = event["step"]
            found.append((name, float(value), float(event["time"]), event["step"]))
    return found


def curves(events: list[Event]) -> Curves:
    by_name: Curves = {}
    for name, value, _, step in points(events, {}):
        by_name.setdefault(name, []).append((step, value))
    return by_name


def seconds_training(events: Iterable[Event]) -> float:
    """Time spent in all attempts together, without the pauses between them."""
    spans: dict[object, tuple[float, float]] = {}
    for event in events:
        if "time" in event and event.get("attempt", 1) > 0:  # attempt 0: reused from another training
            first, last = spans.get(event.get("attempt"), (event["time"], event["time"]))
            spans[event.get("attempt")] = min(first, event["time"]), max(last, event["time"])
    return sum(last - first for first, last in spans.values())


def standing(events: list[Event], before: JsonObject | None = None) -> JsonObject:
    """The state of the training after these events: its status, the time of the last event, its attempts, SLURM jobs, warnings and skipped steps."""
    new: JsonObject = {"status": "RUNNING", "why": "not yet", "time": 0.0, "attempts": 0, "jobs": [], "warnings": [], "skipped": []}
    state = new | (before or {})
    for event in events:
        if event.get("event") == "warning":
            state["warnings"] = [*state["warnings"], event["message"]][-MOST_WARNINGS:]
        if event.get("event") == "bad_step":
            state["skipped"] = sorted({*state["skipped"], event["step"]})
        if event.get("event") == "end":
            state |= {"status": event.get("status", "FAILED"), "why": end_of(event), "time": event.get("time", state["time"])}
        elif event.get("event") == "attempt":
            jobs = [event["job"]] if event.get("job") and event["job"] not in state["jobs"] else []
            state |= {"status": "RUNNING", "why": "not yet", "time": event.get("time", state["time"])}
            state |= {"attempts": state["attempts"] + 1, "jobs": state["jobs"] + jobs}
        elif state["status"] == "RUNNING":
            state["time"] = event.get("time", state["time"])
    return state


def warnings_of(state: JsonObject) -> str:
    number = len(state["skipped"])
    skipped = f"no update in {number} step{'s' * (number > 1)}, whose loss or gradient was not finite or a spike: {shortened([*map(str, state['skipped'])], 10)}"
    return "; ".join([*state["warnings"], *[skipped] * bool(state["skipped"])])


def end_of(event: Event) -> str:
    """How an attempt ended, as text."""
    if event.get("why"):
        return str(event["why"])
    if event.get("status") == "STOPPED":
        return f"stopped by {', '.join(event.get('signals') or ['another process'])}"
    return f"failed: {event['error']}" if event.get("error") else str(event.get("status", "failed")).lower()
