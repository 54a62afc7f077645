"""Classes of images and recordings: dataset classes that read files through a processor of transformers, and a task for models with such a head."""
