"""The library behind the stage scripts: settings, data, tasks, strategies, the training loop."""
