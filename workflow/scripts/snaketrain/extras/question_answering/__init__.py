"""Extractive question answering: the answer to a question is a part of a context, or there is none."""

NO_PLACE = -1  # of a token that is not the context's; what pads lists in a batch is below 0 as well
