"""Scores a model's predictions on one split, and writes them as figures, a table and plots."""

import csv
import math
from pathlib import Path
from statistics import NormalDist
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from snaketrain.manifests import write_json

BLUE, GREY = "#1f5fa8", "#767676"


def write_results(
    folder: Path, run: str, split: str, label_names: list[str], ids, texts, labels, probabilities, losses, confidence: float, bins: int
) -> dict[str, Any]:
    """Writes `<split>_results.json`, `_predictions.csv`, `_confusion.png` and `_reliability.png`; returns the results.

    A label of -100 means that there is none. Without any label there are predictions only.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    order = np.argsort(np.asarray(ids), kind="stable")  # the same table, however many processes predicted
    ids, labels, losses = (np.asarray(values)[order] for values in (ids, labels, losses))
    probabilities = np.asarray(probabilities, dtype=float).reshape(len(ids), len(label_names))[order]
    texts = [texts[i] for i in order]
    write_predictions(folder / f"{split}_predictions.csv", label_names, ids, texts, labels, probabilities)
    known = labels >= 0
    results: dict[str, Any] = {"run": run, "split": split, "examples": len(ids), "labelled": bool(known.any())}
    if known.any():
        results |= score(label_names, labels[known], probabilities[known], losses[known], confidence, bins)
        if not known.all():
            results["unlabelled_examples"] = int((~known).sum())
    draw_confusion(folder / f"{split}_confusion.png", results, label_names)
    draw_reliability(folder / f"{split}_reliability.png", results)
    write_json(folder / f"{split}_results.json", results)
    return results


def score(label_names: list[str], labels, probabilities, losses, confidence: float, bins: int) -> dict[str, Any]:
    """All figures of labelled predictions."""
    classes = range(len(label_names))
    predicted = probabilities.argmax(axis=1)
    right = predicted == labels
    precision, recall, f1, support = precision_recall_fscore_support(labels, predicted, labels=classes, zero_division=0)
    counts = np.bincount(labels, minlength=len(label_names))
    reliability = calibration(probabilities.max(axis=1), right, bins)
    return {
        "examples": len(labels),
        "loss": float(np.mean(losses)),
        "accuracy": float(right.mean()),
        "interval": list(wilson(int(right.sum()), len(labels), confidence)),
        "confidence": confidence,
        "macro_f1": float(f1.mean()),
        "majority_accuracy": float(counts.max() / len(labels)),
        "majority_class": label_names[int(counts.argmax())],
        "calibration_error": sum(b["examples"] * abs(b["accuracy"] - b["probability"]) for b in reliability) / len(labels),
        "classes": {
            name: {"precision": float(precision[i]), "recall": float(recall[i]), "f1": float(f1[i]), "examples": int(support[i])}
            for i, name in enumerate(label_names)
        },
        "confusion": confusion_matrix(labels, predicted, labels=classes).tolist(),
        "reliability": reliability,
    }


def wilson(right: int, examples: int, confidence: float) -> tuple[float, float]:
    """Wilson's interval of a share; unlike the usual plus-minus it stays within 0 and 1 and holds for few examples."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share, denominator = right / examples, 1 + z * z / examples
    centre = (share + z * z / (2 * examples)) / denominator
    half = z / denominator * math.sqrt(share * (1 - share) / examples + z * z / (4 * examples * examples))
    return max(0.0, centre - half), min(1.0, centre + half)


def calibration(confidences, right, bins: int) -> list[dict[str, Any]]:
    """Mean probability and accuracy of the predictions, in bins of equal width; empty bins are left out."""
    place = np.minimum((np.asarray(confidences) * bins).astype(int), bins - 1)
    return [
        {"examples": int(here.sum()), "probability": float(confidences[here].mean()), "accuracy": float(right[here].mean())}
        for here in (place == b for b in range(bins))
        if here.any()
    ]


def write_predictions(path: Path, label_names: list[str], ids, texts, labels, probabilities) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "text", "label", "predicted", "probability", *(f"p_{name}" for name in label_names)])
        for number, text, label, row in zip(ids, texts, labels, probabilities, strict=True):
            best = int(row.argmax())
            given = label_names[label] if label >= 0 else ""
            table.writerow([int(number), text, given, label_names[best], f"{row[best]:.6f}", *(f"{p:.6f}" for p in row)])


# --- plots


def draw_confusion(path: Path, results: dict[str, Any], label_names: list[str]) -> None:
    if not results["labelled"]:
        return draw_placeholder(path, results)
    counts = np.array(results["confusion"])
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    size = max(4.0, 1.6 + 0.7 * len(label_names))
    figure, axes = plt.subplots(figsize=(size + 0.8, size), layout="constrained")
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    ticks = range(len(label_names))
    axes.set(xlabel="predicted", ylabel="true", title=f"{results['run']}, {results['split']}: {results['examples']} examples")
    axes.set_xticks(ticks, label_names, rotation=45 if len(label_names) > 3 else 0, ha="right" if len(label_names) > 3 else "center")
    axes.set_yticks(ticks, label_names)
    if len(label_names) <= 20:  # more would not be readable
        for (row, column), count in np.ndenumerate(counts):
            share = shares[row, column]
            text = f"{count}\n{share:.0%}"
            axes.text(column, row, text, ha="center", va="center", color="white" if share > 0.7 else "black", fontsize=9)
    figure.colorbar(image, ax=axes, label="share of the true class", shrink=0.8)
    _save(figure, path)


def draw_reliability(path: Path, results: dict[str, Any]) -> None:
    if not results["labelled"]:
        return draw_placeholder(path, results)
    points = results["reliability"]
    probabilities, accuracies, counts = ([point[key] for point in points] for key in ("probability", "accuracy", "examples"))
    figure, axes = plt.subplots(figsize=(5, 4.6), layout="constrained")
    axes.plot([0, 1], [0, 1], "--", color=GREY, label="as sure as right")
    axes.plot(probabilities, accuracies, "-", color=BLUE, linewidth=1)
    axes.scatter(probabilities, accuracies, s=[20 + 200 * count / results["examples"] for count in counts], color=BLUE, zorder=3)
    axes.set(xlim=(0, 1.02), ylim=(-0.02, 1.02), xlabel="probability of the predicted class", ylabel="share that is right")
    axes.set_title(f"{results['run']}, {results['split']}: calibration error {results['calibration_error']:.3f}")
    axes.plot([], [], "o-", color=BLUE, label="predictions (larger: more of them)")
    axes.legend(loc="upper left")
    axes.grid(alpha=0.3)
    _save(figure, path)


def draw_placeholder(path: Path, results: dict[str, Any]) -> None:
    """The workflow expects a picture; this one says why there is nothing to see."""
    figure, axes = plt.subplots(figsize=(5, 2))
    axes.axis("off")
    text = f"The {results['split']} split has no labels:\nthere are predictions, but nothing to score."
    axes.text(0.5, 0.5, text, ha="center", va="center")
    _save(figure, path)


def _save(figure, path: Path) -> None:
    figure.savefig(path, dpi=120)
    plt.close(figure)
