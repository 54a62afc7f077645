"""Recordings for a model with an audio head."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from snaketrain.extras.media_classification.files import ClassifiedFiles

WAV, OTHERS = (".wav",), (".flac", ".ogg", ".mp3")


class Recordings(ClassifiedFiles):
    """`augment` gets and returns a waveform, an array of numbers from -1 to 1 at the processor's sampling rate."""

    kind, endings, auto = "a recording", (*WAV, *OTHERS), "AutoFeatureExtractor"

    def __init__(self, seconds: float, **arguments: Any):
        """`seconds`: of each example. Of a longer recording training takes a part at random, and an evaluation the middle; a shorter one ends with silence."""
        super().__init__(**arguments)
        self.samples = max(1, round(seconds * self.processor.sampling_rate))

    def read(self, path: str) -> np.ndarray:
        rate, samples = decoded(path)
        samples = resampled(samples, rate, self.processor.sampling_rate)
        spare = max(0, len(samples) - self.samples)
        start = int(torch.randint(spare + 1, ()).item()) if self.training else spare // 2
        part = samples[start : start + self.samples]
        return np.pad(part, (0, self.samples - len(part)))

    def look_at(self, path: str) -> None:
        rate, samples = decoded(path, mapped=True)
        if not len(samples) or not rate:
            raise ValueError("it is empty")

    def processed(self, content: np.ndarray) -> dict[str, np.ndarray]:
        rate = self.processor.sampling_rate
        return dict(self.processor(content.astype(np.float32), sampling_rate=rate, return_tensors="np"))


def decoded(path: str, mapped: bool = False) -> tuple[int, np.ndarray]:
    """The sampling rate, and the mean of all channels. `mapped`: samples are not read before they are used, where that is possible."""
    if Path(path).suffix.lower() not in WAV:
        try:
            import soundfile  # type: ignore[import-not-found]  # optional
        except ImportError:
            raise ValueError(f"{Path(path).suffix} needs the package soundfile: install it, or convert the file to .wav") from None
        if mapped:
            about = soundfile.info(path)
            return about.samplerate, np.empty(min(1, about.frames))
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
        return rate, samples.mean(1)
    from scipy.io import wavfile

    try:
        rate, samples = wavfile.read(path, mmap=mapped)
    except ValueError:
        if not mapped:
            raise
        rate, samples = wavfile.read(path)  # of 24 bits, which cannot be mapped
    return rate, samples if mapped else between_one(samples).reshape(len(samples), -1).mean(1)


def between_one(samples: np.ndarray) -> np.ndarray:
    """Whole numbers as parts of the largest one of their type; 8 bits have no sign."""
    if samples.dtype == np.uint8:
        return (samples.astype(np.float32) - 128) / 128
    if samples.dtype.kind == "i":
        return samples.astype(np.float32) / -float(np.iinfo(samples.dtype).min)
    return samples.astype(np.float32)


def resampled(samples: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    if rate == wanted:
        return samples
    from scipy.signal import resample_poly

    common = math.gcd(rate, wanted)
    found: np.ndarray = resample_poly(samples, wanted // common, rate // common)
    return found.astype(np.float32)
