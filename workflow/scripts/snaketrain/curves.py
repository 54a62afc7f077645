"""What a run's journal says: its curves, how long it took, how it stands."""

from typing import Any

from snaketrain.journal import Event


def points(events: list[Event], high_water: dict[str, int]) -> list[tuple[str, float, float, int]]:
    """New points as (name, value, time, step). `high_water`, the last step seen by name, moves on with them.

    Steps repeat where a training resumed from a checkpoint before its end: the first attempt's point stays.
    """
    found = []
    for event in events:
        if event.get("event") not in ("train", "eval"):
            continue
        for name, value in (event.get("metrics") or {}).items():
            name = f"{event['event']}/{name}"
            if isinstance(value, bool) or not isinstance(value, int | float) or event["step"] <= high_water.get(name, -1):
                continue
            high_water[name] = event["step"]
            found.append((name, float(value), float(event["time"]), event["step"]))
    return found


def curves(events: list[Event]) -> dict[str, list[tuple[int, float]]]:
    """Steps and values by name."""
    by_name: dict[str, list[tuple[int, float]]] = {}
    for name, value, _, step in points(events, {}):
        by_name.setdefault(name, []).append((step, value))
    return by_name


def seconds_training(events: list[Event]) -> float:
    """Time spent in all attempts together, without the pauses between them."""
    spans: dict[Any, list[float]] = {}
    for event in events:
        if "time" in event:
            spans.setdefault(event.get("attempt"), []).append(event["time"])
    return sum(max(times) - min(times) for times in spans.values())


def standing(events: list[Event], before: dict[str, Any] | None = None) -> dict[str, Any]:
    """How the training stands after these events: {"status": RUNNING or as its end says, "time": of the last event}."""
    state = dict(before or {"status": "RUNNING", "time": 0.0})
    for event in events:
        if event.get("event") == "end":
            state = {"status": event.get("status", "FAILED"), "time": event.get("time", state["time"])}
        elif event.get("event") == "attempt":
            state = {"status": "RUNNING", "time": event.get("time", state["time"])}
        elif state["status"] == "RUNNING":
            state["time"] = event.get("time", state["time"])
    return state
