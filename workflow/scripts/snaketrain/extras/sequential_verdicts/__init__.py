"""Trains two configurations with more seeds until one is better, or until further seeds would hardly tell, as the section `verdicts` says."""
