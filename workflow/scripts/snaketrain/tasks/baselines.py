"""Constant answers, the same for every example, as baselines of the task `module`."""

import torch
from torch import Tensor

OF_CLASSES = ("CrossEntropyLoss", "cross_entropy", "NLLLoss", "nll_loss")
OF_LOGITS = ("BCEWithLogitsLoss", "binary_cross_entropy_with_logits")
OF_VALUES = (
    *("MSELoss", "mse_loss", "L1Loss", "l1_loss", "SmoothL1Loss", "smooth_l1_loss", "HuberLoss", "huber_loss"),
    *("BCELoss", "binary_cross_entropy"),
)
SMALLEST = 1e-7  # smallest share: classes that never occur get a finite logit


def constant_answer(loss: str, prediction: Tensor, target: Tensor | None) -> tuple[Tensor, str] | None:
    """The best constant prediction for a loss, and its description; None if it is unknown how the loss interprets predictions."""
    name, of_torch = loss.rpartition(".")[2], loss.startswith("torch.")
    if target is None:
        return None
    if of_torch and name in OF_CLASSES and not target.is_floating_point() and prediction.ndim == target.ndim + 1:
        counts = torch.bincount(target[target >= 0].flatten(), minlength=prediction.shape[1])  # the loss ignores targets below 0
        logits = (counts / counts.sum()).clamp(min=SMALLEST).log()
        shape = (1, -1, *[1] * (prediction.ndim - 2))
        return logits.reshape(shape).expand_as(
            prediction
        ), f"always class {counts.argmax()}, with the classes' frequencies as probabilities"
    if not (target.is_floating_point() and target.numel() == prediction.numel()) or (of_torch and name not in OF_LOGITS + OF_VALUES):
        return None
    mean = target.reshape(prediction.shape).mean(0)
    words = f"always {f'{mean.item():.4g}, ' if mean.numel() == 1 else ''}the mean of the targets"
    return (mean.logit(SMALLEST) if of_torch and name in OF_LOGITS else mean).expand_as(prediction), words
