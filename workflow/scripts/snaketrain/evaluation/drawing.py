"""Matplotlib for all plots: without a display, and with names shown as they are, not as formulas."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

__all__ = ["Figure", "plt"]

# matplotlib would parse a label such as `$_{bad$` as a formula, and fail
plt.rcParams.update({"text.parse_math": False, "text.usetex": False, "axes.formatter.use_mathtext": False})
