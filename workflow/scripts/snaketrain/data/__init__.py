"""From raw files to examples: fetching them, reading their rows, splitting, tokenising, and counting all that is odd."""
