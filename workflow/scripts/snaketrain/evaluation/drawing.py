"""How all pictures are drawn: without a screen, and with names as they are, which are no formulas and of any length."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

# matplotlib would read `$_{bad$` as a formula, and whoever has such a label would have no picture but an error
plt.rcParams.update({"text.parse_math": False, "text.usetex": False, "axes.formatter.use_mathtext": False})


def shown(name: object, most: int = 100) -> str:
    """A name on one line: without what cannot be drawn, and cut where there would be no room for a picture beside it."""
    line = " ".join("".join(character if character.isprintable() else " " for character in str(name)).split())
    return line if len(line) <= most else line[: most - 1] + "…"
