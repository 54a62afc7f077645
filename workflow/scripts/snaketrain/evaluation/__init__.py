"""What the trainings achieved: metrics, pictures, and runs side by side."""
