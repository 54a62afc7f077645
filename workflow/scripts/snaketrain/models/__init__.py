"""What tasks and strategies know of models: where they come from, what they are made of."""
