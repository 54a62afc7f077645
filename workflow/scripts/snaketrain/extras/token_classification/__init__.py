"""Token classification, such as named entity recognition: a tag for each word of a sentence."""
