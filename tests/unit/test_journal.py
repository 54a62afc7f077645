"""A journal that is opened again counts its attempts and truncates an incomplete line."""

import json

import pytest

from snaketrain.runtime.journal import Journal, events_named, read_events


def train(step: int) -> str:
    return json.dumps({"event": "train", "step": step, "note": '{"event": "attempt"'}) + "\n"


@pytest.mark.parametrize("torn", ["", '{"event": "tra', '{"event": "attempt", "resume_step": 7, "ti'])
def test_attempts_are_counted_and_a_truncated_line_is_removed(tmp_path, torn):
    path = tmp_path / "journal.jsonl"
    for attempt in (1, 2, 3):
        with open(path, "a", encoding="utf-8") as file:
            file.write(train(attempt) + torn)
        journal = Journal(path)
        journal.begin(resume_step=attempt)
        journal.file.close()
        assert journal.attempt == attempt
    events, offset = read_events(path)
    assert [event["event"] for event in events] == ["train", "attempt"] * 3
    assert offset == path.stat().st_size


def test_an_empty_journal_begins_with_the_first_attempt(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.touch()
    journal = Journal(path)
    journal.begin(resume_step=0)
    journal.file.close()
    assert [event["attempt"] for event in read_events(path)[0]] == [1]


def test_events_of_a_name_are_found_between_others(tmp_path):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    for step in (1, 2):
        journal.write("train", step=step, note='{"event": "samples"')
        journal.write("samples", step=step)
    journal.file.write('{"event": "samples", "ste')
    journal.file.flush()
    assert [event["step"] for event in events_named(path, "samples")] == [1, 2]
    assert list(events_named(tmp_path / "none.jsonl", "samples")) == []
