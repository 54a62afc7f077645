"""Learning from preferences: pairs of answers to a prompt of which one is better, by DPO or IPO, and reward models."""
