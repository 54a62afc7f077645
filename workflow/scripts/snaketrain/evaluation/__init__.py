"""What came of the trainings: figures, pictures, and runs side by side."""
