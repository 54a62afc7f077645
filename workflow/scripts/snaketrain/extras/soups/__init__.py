"""Averages the selected weights of several runs while the development metric improves, as the section `soups` says: a greedy soup."""
