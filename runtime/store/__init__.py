"""The model store: where models lie on disk, how they get there, and what is written beside them once."""
