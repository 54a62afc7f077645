"""Multiple choice: which of some answers to a question is right."""

CHOICE_BREAK = "\n"  # between the choices of a question in the prepared data
