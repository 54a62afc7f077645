"""Tokenises large texts several times as fast: words that were seen before are not encoded again."""
