"""Learning from preferences: pairs of answers to a prompt of which one is better, by DPO, IPO, KTO or ORPO, and reward models."""

WITH_REFERENCE = ("dpo", "ipo", "kto")  # losses that compare the model with a frozen copy of its start
