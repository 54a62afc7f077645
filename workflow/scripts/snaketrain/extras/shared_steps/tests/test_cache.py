"""A team's cache of steps: what is shared is taken over elsewhere, and what is damaged or foreign is not."""

import json
import random
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from snaketrain.config.schema import Train
from snaketrain.extras.shared_steps.cache import Cache, public
from snaketrain.extras.shared_steps.check import problems_of_run
from snaketrain.extras.shared_steps.reuse import Beginning, reuse_steps
from snaketrain.extras.shared_steps.settings import SharedSteps, StepsCache
from snaketrain.extras.shared_steps.trajectory import Trajectory
from snaketrain.runtime.manifests import write_json
from snaketrain.training.checkpoints.publishing import publish
from snaketrain.training.plan import Plan, folder_name

HERE = {"strategy": "Single", "processes": 1}
ALICE, BOB, MALLORY = (Ed25519PrivateKey.generate() for _ in range(3))


def beginning(folder: Path, base: str = "base") -> Beginning:
    return Beginning(folder / "training", Trajectory(base, "measures", HERE, 0, lambda step: b"rate"), Plan.of(Train(steps=40), [1] * 1000))


def trained(folder: Path, *steps: int, base: str = "base", size: int = 100) -> Beginning:
    """What a training leaves that has kept these checkpoints."""
    begun = beginning(folder, base)

    def write(target: Path) -> list[Path]:
        record = {"Fingerprints": begun.trajectory.record(step, 0)}
        write_json(target / "state.json", {"step": step, "metrics": None, "scaler": {}, "callbacks": record})
        (target / "model.safetensors").write_bytes(f"{base} {step}".encode() * size)
        return [target / "state.json", target / "model.safetensors"]

    for step in steps:
        publish(begun.folder / "checkpoints" / folder_name(step), write)
    lines = [
        {"event": "attempt", "resume_step": 0, "execution": HERE},
        {"event": "train", "step": 4, "metrics": {"loss": 0.5}, "attempt": 1},
    ]
    (begun.folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return begun


def cache(at: Path | str, key: Ed25519PrivateKey = ALICE, gigabytes: float = 1) -> Cache:
    return Cache(str(at), {public(ALICE.public_key()): "alice", public(BOB.public_key()): "bob"}, key, gigabytes)


def share(cache: Cache, begun: Beginning, name: str = "run wide") -> None:
    cache.share(begun.folder, begun.trajectory, name)


def taken_over(begun: Beginning) -> list[int]:
    return sorted(int(path.name[5:]) for path in begun.folder.glob("checkpoints/step-*"))


@pytest.fixture
def shared(tmp_path) -> Path:
    """A cache with two checkpoints of Alice's."""
    share(cache(tmp_path / "cache"), trained(tmp_path / "alice/results/runs/wide", 4, 8))
    return tmp_path / "cache"


@pytest.mark.parametrize("place", ["folder", "memory://steps"])
def test_a_colleague_takes_over_what_was_shared(tmp_path, place, caplog):
    caplog.set_level("INFO")
    at = tmp_path / "cache" if place == "folder" else place
    theirs, mine = trained(tmp_path / "alice/results/runs/wide", 4, 8), beginning(tmp_path / "bob/results/runs/mine")
    share(cache(at), theirs)
    reuse_steps(mine, cache=cache(at, BOB))
    assert "took over 8 of 40 steps from the cache: run wide of alice" in caplog.messages
    for step in (4, 8):
        files = [begun.folder / "checkpoints" / folder_name(step) / "model.safetensors" for begun in (theirs, mine)]
        assert files[0].read_bytes() == files[1].read_bytes()
    assert '"event": "train"' in (mine.folder / "journal.jsonl").read_text()
    assert not (mine.folder.parent / ".cached").exists()
    if place != "folder":
        fsspec.filesystem("memory").rm("/steps", recursive=True)


def test_what_the_workspace_has_is_not_copied_from_the_cache(tmp_path, shared, caplog):
    """Nor does a training copy anything from another trajectory."""
    caplog.set_level("INFO")
    trained(tmp_path / "bob/results/runs/mine", 8)
    reuse_steps(beginning(tmp_path / "bob/results/runs/second"), cache=cache(shared, BOB))
    reuse_steps(other := beginning(tmp_path / "bob/results/runs/other", "other settings"), cache=cache(shared, BOB))
    assert [line for line in caplog.messages if "took over" in line] == ["took over 8 of 40 steps from run mine"]
    assert taken_over(other) == []


def test_nothing_that_is_damaged_is_used(tmp_path, shared, caplog):
    """One bit of any file in the cache, 100 times."""
    drawn = random.Random(0)
    for trial in range(100):
        copy, mine = tmp_path / f"copy-{trial}", beginning(tmp_path / f"bob-{trial}/results/runs/mine")
        shutil.copytree(shared, copy)
        damaged = drawn.choice(sorted(path for path in copy.rglob("*") if path.is_file()))
        content = bytearray(damaged.read_bytes())
        content[drawn.randrange(len(content))] ^= 1 << drawn.randrange(8)
        damaged.write_bytes(content)
        caplog.clear()
        reuse_steps(mine, cache=cache(copy, BOB))
        assert not taken_over(mine) and not (mine.folder / "journal.jsonl").exists(), damaged
        assert str(damaged) in caplog.text, "it is told"


def test_what_a_stranger_has_shared_is_not_used(tmp_path, caplog):
    """Nor what carries a member's key under a signature that is another's."""
    at = tmp_path / "cache"
    share(cache(at, MALLORY), trained(tmp_path / "mallory/results/runs/wide", 4, 8))
    mine = beginning(tmp_path / "bob/results/runs/mine")
    reuse_steps(mine, cache=cache(at, BOB))
    assert not taken_over(mine) and "its signer is no member" in caplog.text
    (listing,) = (at / "trainings/base").iterdir()
    listing.write_bytes(listing.read_bytes().replace(public(MALLORY.public_key()).encode(), public(ALICE.public_key()).encode()))
    reuse_steps(mine, cache=cache(at, BOB))
    assert not taken_over(mine) and "it is damaged (InvalidSignature)" in caplog.text


def test_a_listing_cannot_write_elsewhere(tmp_path, shared, caplog):
    (listing,) = (shared / "trainings/base").iterdir()
    content = json.loads(listing.read_bytes().partition(b"\n")[2])
    content["files"]["checkpoints/step-00000008/../../../../../../escaped"] = content["files"]["journal.jsonl"]
    body = json.dumps(content).encode()
    listing.write_bytes(json.dumps([public(ALICE.public_key()), ALICE.sign(body).hex()]).encode() + b"\n" + body)
    reuse_steps(mine := beginning(tmp_path / "bob/results/runs/mine"), cache=cache(shared, BOB))
    assert not taken_over(mine) and not list(tmp_path.rglob("escaped")) and "names files outside" in caplog.text


def test_a_damaged_file_is_shared_again(tmp_path, shared):
    model = tmp_path / "alice/results/runs/wide/training/checkpoints/step-00000008/model.safetensors"
    (stored,) = [path for path in (shared / "objects").iterdir() if path.read_bytes() == model.read_bytes()]
    stored.write_bytes(b"x" * stored.stat().st_size)
    reuse_steps(mine := beginning(tmp_path / "bob/results/runs/mine"), cache=cache(shared, BOB))
    assert not taken_over(mine) and not stored.exists()
    share(cache(shared), beginning(tmp_path / "alice/results/runs/wide"))
    reuse_steps(second := beginning(tmp_path / "carol/results/runs/second"), cache=cache(shared, BOB))
    assert taken_over(second) == [4, 8]


@pytest.mark.parametrize(
    "cat, told", [(lambda *_, **__: 1 / 0, "ZeroDivisionError: "), (lambda *_, **__: time.sleep(1), "has not answered within")]
)
def test_a_cache_that_cannot_be_read_leaves_the_training_alone(tmp_path, shared, caplog, monkeypatch, cat, told):
    monkeypatch.setattr("snaketrain.extras.shared_steps.cache.SECONDS_TO_ANSWER", 0.5)
    broken = cache(shared, BOB)
    monkeypatch.setattr(type(broken.store[0]), "cat", cat)
    reuse_steps(mine := beginning(tmp_path / "bob/results/runs/mine"), cache=broken)
    assert not taken_over(mine) and "shared_steps.cache cannot be read: " in caplog.text and told in caplog.text


def test_what_was_used_longest_ago_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("snaketrain.extras.shared_steps.cache.SECONDS_OF_UPLOADS", -1.0)
    at, small = tmp_path / "cache", 0.0006
    for number in range(3):
        share(cache(at), trained(tmp_path / f"alice/results/runs/{number}", 4, base=f"base {number}", size=30_000))
    reuse_steps(beginning(tmp_path / "bob/results/runs/0", "base 0"), cache=cache(at, BOB))  # which uses it
    share(cache(at, gigabytes=small), trained(tmp_path / "alice/results/runs/3", 4, base="base 3", size=30_000))
    assert sorted(path.name for path in (at / "trainings").iterdir() if list(path.iterdir())) == ["base 0", "base 3"]
    assert sum(path.stat().st_size for path in (at / "objects").iterdir()) <= small * 1e9
    reuse_steps(again := beginning(tmp_path / "carol/results/runs/0", "base 0"), cache=cache(at, BOB))
    assert taken_over(again) == [4]


@pytest.mark.parametrize(
    "key, member, expected",
    [
        (ALICE, ALICE, None),
        (ALICE, BOB, "members does not have the public key of"),
        (rsa.generate_private_key(65537, 1024), ALICE, "it is of another kind than ed25519"),
        (None, ALICE, "cannot be read"),
    ],
)
def test_a_key_that_nobody_would_know_is_refused(tmp_path, key, member, expected):
    (tmp_path / "key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()) if key else b"")
    (tmp_path / "members").write_text(f"# our team\nalice {public(member.public_key())} alice@laptop\n")
    given = StepsCache(at=str(tmp_path), members=str(tmp_path / "members"), key=str(tmp_path / "key"))
    if expected is None:
        assert Cache.of(given).members == {public(ALICE.public_key()): "alice"}
    else:
        with pytest.raises(SystemExit, match=expected):
            Cache.of(given)


def test_wrong_settings_are_found_before_any_job(tmp_path):
    def problems(**given: str | None) -> str:
        section = SharedSteps(cache=StepsCache(**{"at": str(tmp_path), "members": str(tmp_path / "members"), "key": None} | given))
        return " ".join(problems_of_run(SimpleNamespace(shared_steps=section)))

    (tmp_path / "members").write_text("alice ssh-ed25519 AAAA\n\n# bob has left\n")
    assert problems() == ""
    assert "shared_steps.cache.at: there is no folder /not/there. Make it" in problems(at="/not/there")
    assert "`s4://` is unknown" in problems(at="s4://bucket/steps")
    assert "shared_steps.cache.key: there is no file ~/no. Make a key" in problems(key="~/no")
    (tmp_path / "members").write_text("\nalice ssh-rsa AAAA\n")
    assert "members cannot be read: line 2 is not a name and a public key" in problems()
    (tmp_path / "members").write_text("")
    assert "names nobody" in problems()
