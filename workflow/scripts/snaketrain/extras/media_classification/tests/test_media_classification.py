"""Images and recordings as examples: what is read of them, what is wrong with them, and a workflow that learns images on one process and on two."""

import base64
import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pipeline.test_staleness import jobs_in
from pipeline.workspace import configuration, make_workspace, snakemake
from scipy.io import wavfile

from snaketrain.checking import Findings
from snaketrain.checking.runs import check
from snaketrain.config.runs import read_runs
from snaketrain.config.schema import Data, Settings
from snaketrain.data.cells import BadData
from snaketrain.data.loading.training_data import Items, open_items
from snaketrain.data.preparing import prepare_items
from snaketrain.extras.media_classification.images import Images
from snaketrain.extras.media_classification.recordings import Recordings, decoded, resampled
from snaketrain.orchestration.named_code import metric_errors
from snaketrain.runtime.manifests import Manifest

IMAGES = "snaketrain.extras.media_classification.images.Images"
PROCESSOR = {"use": "transformers.ViTImageProcessorPil", "arguments": {"size": {"height": 8, "width": 8}}}
HEARS = {"use": "transformers.Wav2Vec2FeatureExtractor", "arguments": {"sampling_rate": 8000, "do_normalize": False}}
COLOURS = {"blue": (40, 60, 200), "green": (40, 180, 60), "red": (200, 50, 40)}
SHIFTED = """
import numpy as np
from PIL import Image

def shifted(image, most):
    return Image.fromarray(np.roll(np.asarray(image), np.random.randint(most + 1), 1))
"""


def write_images(folder: Path, each: int) -> Path:
    drawn = np.random.default_rng(0)
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for number in range(each):
            pixels = np.clip(drawn.normal(colour, 60, (10, 12, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number:03}.png")
    return folder


def write_table(path: Path, *rows: tuple[str, str]) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("file", "label"), *rows])
    return path


# --- a workflow


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    write_images(folder / "colours", 40)
    (folder / "my_code.py").write_text(SHIFTED)
    augment = {"use": "my_code.py:shifted", "arguments": {"most": 3}}
    train = {"use": IMAGES, "arguments": {"folder": "colours", "processor": PROCESSOR, "augment": augment}}
    small = {"image_size": 8, "patch_size": 4, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.2}
    given = configuration()
    make_workspace(
        folder,
        data={"name": "colours", "train": train, "dev_fraction": 0.2, "test_fraction": 0.2},
        model={"use": "transformers.ViTForImageClassification", "arguments": small | dropout},
        train=given["train"] | {"task": "media_classification", "epochs": 6, "learning_rate": 5e-3},
        select={"metric": "accuracy"},
        runs={
            "one": {},
            "two": {"compute.processes": 2, "compute.loader_workers": 1},
            "untrained": {"train.learning_rate": 1e-9, "model.arguments.initializer_range": 1e-4},
        },
    )
    snakemake(folder, tried=True)
    return folder


def losses(folder: Path, run: str) -> list[float]:
    lines = (folder / f"results/runs/{run}/training/journal.jsonl").read_text().splitlines()
    return [event["metrics"]["loss"] for event in map(json.loads, lines) if event["event"] == "train"]


def test_two_processes_equal_one_and_the_model_learns(finished):
    assert len(losses(finished, "one")) > 5 and losses(finished, "one") == pytest.approx(losses(finished, "two"), rel=1e-5)
    results = json.loads((finished / "results/runs/one/evaluation/test_results.json").read_text())
    assert results["metrics"]["accuracy"] > 0.9 and [*results["classes"]] == sorted(COLOURS)


def test_transformers_answers_the_same_from_the_model_and_its_processor(finished):
    from transformers import pipeline

    model = finished / "results/runs/one/selection/model"
    assert "AutoProcessor.from_pretrained" in (model / "README.md").read_text()
    answer = pipeline("image-classification", model=str(model), device="cpu")
    with open(finished / "results/runs/one/evaluation/test_predictions.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 24
    for row in rows[:5]:
        best = answer(str(finished / row["text"]))[0]
        assert Path(row["text"]).parent.name == row["label"] and best["label"] == row["predicted"]
        assert best["score"] == pytest.approx(float(row["probability"]), abs=1e-4)


def test_the_page_shows_the_hardest_images(finished):
    page = (finished / "results/comparison/index.html").read_text()
    (shown,) = set(re.findall(r"Examples that (.+?) gets most wrong", page)) & {"untrained"}
    found = re.findall(r'<img class="thumbnail" src="data:image/jpeg;base64,([^"]+)"', page)
    assert shown and len(found) >= 8
    with Image.open(io.BytesIO(base64.b64decode(found[0]))) as image:
        assert image.size == (12, 10)


def test_images_of_another_size_than_the_model_takes_are_refused_before_any_job(tmp_path):
    train = {"use": IMAGES, "arguments": {"folder": str(write_images(tmp_path / "colours", 2)), "processor": PROCESSOR}}
    small = {
        "image_size": 16,
        "patch_size": 4,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    model = {"use": "transformers.ViTForImageClassification", "arguments": small}
    config = {"data": {"train": train}, "model": model, "train": {"task": {"use": "media_classification"}, "steps": 2}, "runs": {"one": {}}}
    said: list[dict] = []
    check(read_runs(config), Findings(said.append), tmp_path)
    assert ["Input image size (8*8) doesn't match model (16*16)" in each["problem"] for each in said if "problem" in each] == [True]


def test_a_metric_of_another_task_is_refused_before_any_job():
    run = {"data": {"train": {"use": IMAGES}}, "train": {"task": "media_classification"}, "select": {"metric": "mrr"}}
    assert [error.partition(" It logs")[0] for error in metric_errors(Settings.model_validate(run))] == [
        "select.metric: the task logs no 'mrr'."
    ]


def test_another_image_is_noticed(finished):
    assert not jobs_in(snakemake(finished, "--dry-run").stdout)
    image = finished / "colours/red/more.png"
    Image.new("RGB", (9, 9), COLOURS["red"]).save(image)
    assert "prepare_data" in jobs_in(snakemake(finished, "--dry-run").stdout)
    image.unlink()
    (finished / "colours/yellow").mkdir()
    assert "prepare_data" in jobs_in(snakemake(finished, "--dry-run").stdout)
    (finished / "colours/yellow").rmdir()
    assert not jobs_in(snakemake(finished, "--dry-run").stdout)


# --- files and their classes


def test_an_augmentation_follows_from_seed_epoch_and_example(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_code.py").write_text(SHIFTED)
    augment = {"use": "my_code.py:shifted", "arguments": {"most": 9}}
    images = Images(PROCESSOR, folder=str(write_images(tmp_path / "colours", 4)), augment=augment)

    def pixels(seed: int, epoch: int | None, ids: range) -> torch.Tensor:
        return Items(images, "images", range(len(images)), [], seed).batch(ids, epoch)["pixel_values"]

    whole = pixels(1, 0, range(12))
    assert whole.shape == (12, 3, 8, 8) and torch.equal(whole[4:7], pixels(1, 0, range(4, 7)))
    assert not torch.equal(whole, pixels(1, 1, range(12))) and not torch.equal(whole, pixels(2, 0, range(12)))
    assert torch.equal(pixels(1, None, range(12)), pixels(2, None, range(12)))


def test_a_table_names_files_beside_it(tmp_path):
    write_images(tmp_path / "colours", 1)
    table = write_table(tmp_path / "all.csv", ("colours/red/000.png", "warm"), ("colours/blue/000.png", "cold"))
    images = Images(PROCESSOR, table=str(table))
    assert (images.label_names, images.labels) == (["cold", "warm"], [1, 0])
    assert images[0]["labels"] == 1 and images[0]["pixel_values"].shape == (3, 8, 8)
    assert Images(PROCESSOR, table=str(table), classes=["warm", "cold", "hot"]).labels == [0, 1]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("colours/red/000.png", "warm"), ("", "warm")], "all.csv, line 3: has no file"),
        ([("colours/red/000.png", "")], "all.csv, line 2: has no label"),
        ([("colours/red/none.png", "warm")], "all.csv, line 2: there is no file .*none.png"),
        ([("colours/red/000.png", "warm"), ("colours/blue/000.png", "cold")], "'cold' is not among `classes`: warm"),
    ],
)
def test_what_is_wrong_in_a_table_is_said_with_its_line(tmp_path, rows, message):
    write_images(tmp_path / "colours", 1)
    with pytest.raises(ValueError, match=message):
        Images(PROCESSOR, table=str(write_table(tmp_path / "all.csv", *rows)), classes=["warm"])


def prepared(folder: Path, **arguments: object) -> tuple[dict, dict[str, Items]]:
    source = {"use": IMAGES, "arguments": {"processor": PROCESSOR, "folder": str(folder / "colours")}}
    given = {name: {"use": IMAGES, "arguments": {"processor": PROCESSOR, "folder": str(path)}} for name, path in arguments.items()}
    facts = prepare_items(Data.model_validate({"train": source, "test_fraction": 0.0} | given), folder)
    manifest = Manifest("prepare_data", "", {}, {}, {}, facts, path=str(folder / "manifest.json"))
    return facts, {split: open_items(manifest, split, seed=1) for split in ("train", "dev")}


def test_files_that_cannot_be_decoded_are_found_before_the_training(tmp_path):
    write_images(tmp_path / "colours", 5)
    (tmp_path / "colours/red/001.png").write_text("no image")
    cut = tmp_path / "colours/green/002.png"
    cut.write_bytes(cut.read_bytes()[:100])
    with pytest.raises(BadData, match=r"2 of 15 files .*green/002.png: .*red/001.png: cannot identify"):
        prepared(tmp_path)


def test_classes_of_another_set_must_be_the_same(tmp_path):
    write_images(tmp_path / "colours", 5)
    other = write_images(tmp_path / "other", 2)
    facts, splits = prepared(tmp_path, dev=other)
    assert facts["label_names"] == sorted(COLOURS) and len(splits["dev"]) == 6
    for image in (other / "green").iterdir():
        image.unlink()
    with pytest.raises(
        BadData, match=r"data.dev: the classes of its dataset are blue, red, and those of the training data blue, green, red"
    ):
        prepared(tmp_path, dev=other)


# --- recordings


def tone(count: int, rate: int = 8000) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * 400 * np.arange(count) / rate)


@pytest.mark.parametrize(("kind", "close"), [(np.uint8, 0.02), (np.int16, 1e-4), (np.int32, 1e-6), (np.float32, 1e-6)])
def test_every_kind_of_samples_is_between_one_and_minus_one(tmp_path, kind, close):
    wave = tone(400)
    stored = wave if kind is np.float32 else (wave + 1) * 127.5 if kind is np.uint8 else wave * np.iinfo(kind).max
    wavfile.write(tmp_path / "a.wav", 8000, np.stack([stored, stored], 1).astype(kind))
    rate, samples = decoded(str(tmp_path / "a.wav"))
    assert rate == 8000 and samples.dtype == np.float32 and samples == pytest.approx(wave, abs=close)


def test_another_rate_is_converted(tmp_path):
    found = resampled(tone(4410, 44100).astype(np.float32), 44100, 8000)
    assert len(found) == 800 and found[100:700] == pytest.approx(tone(800)[100:700], abs=0.01)


def test_training_takes_any_part_and_an_evaluation_the_middle(tmp_path):
    (tmp_path / "sounds/up").mkdir(parents=True)
    wavfile.write(tmp_path / "sounds/up/long.wav", 8000, np.arange(8000, dtype=np.int16))
    wavfile.write(tmp_path / "sounds/up/short.wav", 8000, np.arange(1, 401, dtype=np.int16))
    sounds = Recordings(seconds=0.1, processor=HEARS, folder=str(tmp_path / "sounds"))
    sounds.check()
    long, short = (sounds[number]["input_values"] * 32768 for number in range(2))
    assert long.tolist() == pytest.approx(np.arange(3600, 4400).tolist(), abs=0.01)
    assert short[:400].tolist() == pytest.approx(np.arange(1, 401).tolist(), abs=0.01) and not short[400:].any()
    sounds.training = True
    starts = {int(sounds[0]["input_values"][0] * 32768 + 0.5) for _ in range(20)}
    assert len(starts) > 10 and min(starts) >= 0 and max(starts) <= 7200


def test_recordings_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "sounds/up").mkdir(parents=True)
    wavfile.write(tmp_path / "sounds/up/empty.wav", 8000, np.zeros(0, np.int16))
    (tmp_path / "sounds/up/noise.wav").write_bytes(b"RIFF and no more")
    sounds = Recordings(seconds=0.1, processor=HEARS, folder=str(tmp_path / "sounds"))
    with pytest.raises(BadData, match=r"2 of 2 files .*empty.wav: it is empty, .*noise.wav"):
        sounds.check()
