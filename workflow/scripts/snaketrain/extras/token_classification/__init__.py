"""Token classification, such as named entity recognition: a tag for each word of a sentence."""

SPACE, NO_BREAK = " ", "\u00a0"  # between the words of a text in the prepared data, and between tags in the predictions; inside a word
NO_LABEL, NO_TOKEN = -100, -1  # of a word that is none, behind a shorter sentence; and of one without a token, whose tag is O
