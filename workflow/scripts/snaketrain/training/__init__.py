"""What happens in a training: loop.py first, then what it is handed."""
