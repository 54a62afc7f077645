"""For image_classification.yaml and streamed_digits.yaml: 1,797 scanned digits of 8 x 8 pixels, which come with scikit-learn, and a small network."""

import random
from collections.abc import Iterator

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import pad


class Digits(torch.utils.data.Dataset):
    label_names = [str(digit) for digit in range(10)]  # noqa: RUF012 - shown with the results
    training = False  # set by the trainer: True for training batches

    def __init__(self, shift: int = 0, first: int = 0, last: int | None = None):
        images, labels = load_digits(return_X_y=True)
        self.images = torch.tensor(images[first:last].reshape(-1, 1, 8, 8) / 16, dtype=torch.float32)
        self.labels, self.shift = labels[first:last], shift

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index]
        if self.training and self.shift:  # by a few pixels; random numbers depend only on seed, epoch and index
            down, right = torch.randint(2 * self.shift + 1, (2,)).tolist()
            image = pad(image, [self.shift] * 4)[:, down : down + 8, right : right + 8]
        return image, int(self.labels[index])


class DigitStream(torch.utils.data.IterableDataset):
    """The digits one after another, in another order in each pass. Where a pass was interrupted, the state says how many were given."""

    def __init__(self, shift: int = 0, first: int = 0, last: int | None = None):
        self.digits = Digits(shift, first, last)
        self.digits.training = True
        self.order = self.begin = self.given = 0

    def set_epoch(self, number: int) -> None:  # called before each pass
        self.order = number

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        numbers = random.Random(self.order).sample(range(len(self.digits)), len(self.digits))
        begin, self.begin = self.begin, 0  # only this pass begins within
        for place in range(begin, len(numbers)):
            self.given = place + 1  # before `yield`: the state is saved after the digit was given
            yield self.digits[numbers[place]]

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.begin = self.given = state["given"]


class SmallCnn(nn.Sequential):
    def __init__(self, channels: int = 16, classes: int = 10):
        super().__init__(
            nn.Conv2d(1, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, 2 * channels, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(2 * channels * 16, classes),
        )
