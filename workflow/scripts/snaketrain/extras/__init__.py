"""Features that the core runs without. Each folder here is one: delete it, and everything else works.

An extra may import the core, and never the other way round: the core asks each folder for what it adds (`config/schema/of_extras.py`).
"""

import snaketrain.config.schema  # noqa: F401 - it imports the `settings.py` of each extra, which cannot be the first to be imported
