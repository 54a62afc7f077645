"""Matplotlib as all pictures use it: without a screen, and with names as they are, which are no formulas."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

__all__ = ["Figure", "plt"]

# matplotlib would read `$_{bad$` as a formula, and whoever has such a label would have no picture but an error
plt.rcParams.update({"text.parse_math": False, "text.usetex": False, "axes.formatter.use_mathtext": False})
