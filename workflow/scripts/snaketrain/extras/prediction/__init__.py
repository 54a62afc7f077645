"""Predicts files without labels with a trained model: in the workflow those of the section `predict`, and by hand."""

COMMANDS = {"predict": ("predict.py", "predict unlabelled data with a trained model")}
