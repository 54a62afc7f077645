"""Which of many failing ranks prints what, and what each saves."""

import logging
import os
import warnings
from pathlib import Path

import pytest

from snaketrain.runtime import rank_logs
from snaketrain.runtime.rank_logs import report_failure

LOST = "[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:23456"


@pytest.fixture
def as_rank(monkeypatch):
    def become(rank: int, ranks: int = 1024, local: int | None = None) -> None:
        names = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank % 8 if local is None else local, "LOCAL_WORLD_SIZE": 8}
        for name, value in names.items():
            monkeypatch.setenv(name, str(value))

    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "first start")
    return become


@pytest.fixture(autouse=True)
def quiet():
    """No handlers are left behind."""
    yield
    logging.basicConfig(handlers=[], force=True)
    logging.captureWarnings(False)


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def elsewhere(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def reports(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("failed/*/*.txt"))


def test_the_first_failure_is_printed_with_its_traceback_and_the_same_elsewhere_is_not(as_rank, tmp_path, capfd):
    for rank in (7, 0, 900):
        as_rank(rank)
        rank_logs.log_to(None)
        cause = report_failure("training", tmp_path, raised(ValueError(f"no such number: {rank}")))
        assert cause.startswith("rank 7 on ") and cause.endswith("ValueError: no such number: 7")
    printed = capfd.readouterr().err
    assert printed.count("Traceback") == 1 and "rank 7 on" in printed and "failed first. the training failed" in printed
    assert reports(tmp_path) == ["rank-7.txt"]


def test_another_failure_is_printed_in_one_line_and_reported(as_rank, tmp_path, capfd):
    as_rank(7)
    report_failure("training", tmp_path, raised(ValueError("no such number")))
    as_rank(9)
    report_failure("training", tmp_path, elsewhere(KeyError("no such word")))
    assert "KeyError: 'no such word' (after rank 7; " in capfd.readouterr().err.splitlines()[-1]
    assert reports(tmp_path) == ["rank-7.txt", "rank-9.txt"]


def test_a_rank_that_lost_a_peer_is_silent_unless_no_rank_says_why(as_rank, tmp_path, capfd):
    as_rank(3)
    assert "lost its connection to a rank that ended without a message" in report_failure("training", tmp_path, raised(RuntimeError(LOST)))
    as_rank(4)
    report_failure("training", tmp_path, elsewhere(RuntimeError(LOST)))
    assert "Traceback" not in (printed := capfd.readouterr().err) and printed.count("lost its connection") >= 1
    as_rank(5)
    report_failure("training", tmp_path, raised(ValueError("the reason, which came late")))
    assert "the reason, which came late" in capfd.readouterr().err
    assert reports(tmp_path) == ["rank-3.txt", "rank-5.txt"]


def test_the_failures_of_an_earlier_start_do_not_count(as_rank, tmp_path, monkeypatch, capfd):
    as_rank(7)
    report_failure("training", tmp_path, raised(ValueError("before")))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "second start")
    assert report_failure("training", tmp_path, raised(ValueError("now"))).endswith("now")
    assert "ValueError: now" in capfd.readouterr().err


def test_only_one_of_many_ranks_that_fail_at_once_prints(as_rank, tmp_path, capfd):
    """Real processes, which start all at the same moment."""
    pids = []
    for rank in range(16):
        if not (pid := os.fork()):
            as_rank(rank)
            rank_logs.log_to(None)
            report_failure("training", tmp_path, raised(ValueError("no such number")))
            os._exit(0)
        pids.append(pid)
    assert all(os.waitpid(pid, 0)[1] == 0 for pid in pids)
    assert capfd.readouterr().err.count("Traceback") == 1 and len(reports(tmp_path)) == 1


def test_without_a_folder_each_rank_says_why(as_rank, tmp_path, capfd):
    (tmp_path / "file").touch()
    as_rank(7)
    assert report_failure("training", tmp_path / "file", raised(ValueError("no such number"))).endswith("no such number")
    assert "no such number" in capfd.readouterr().err


def test_passwords_are_concealed(as_rank, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789")
    as_rank(7)
    rank_logs.log_to(None)
    report_failure("training", tmp_path, raised(ValueError("hf_0123456789 refused")))
    written = "".join(path.read_text() for path in tmp_path.glob("failed/*/*"))
    assert "refused" in written and "hf_0123456789" not in written + capfd.readouterr().err


# --- logs


@pytest.mark.parametrize(
    ("rank", "local", "of_all", "expected"), [(0, 0, False, True), (8, 0, False, True), (9, 1, False, False), (9, 1, True, True)]
)
def test_the_first_rank_of_each_node_keeps_files(as_rank, rank, local, of_all, expected):
    as_rank(rank, local=local)
    assert rank_logs.keeps_files(of_all) is expected


def test_a_rank_without_a_log_prints_nothing_and_reports_its_last_lines(as_rank, tmp_path, capfd, monkeypatch):
    for name in ("TORCH_CPP_LOG_LEVEL", "TRANSFORMERS_VERBOSITY", "TQDM_DISABLE"):
        monkeypatch.delenv(name, raising=False)
    as_rank(9)
    rank_logs.quiet_libraries()
    rank_logs.log_to(None)
    logging.info("a line of this rank")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("of a library", stacklevel=1)
    assert capfd.readouterr().err == "" and os.environ["TRANSFORMERS_VERBOSITY"] == "error"
    report_failure("training", tmp_path, raised(ValueError("no such number")))
    (report,) = tmp_path.glob("failed/*/rank-9.txt")
    assert "a line of this rank" in report.read_text() and "of a library" in report.read_text()
