"""Languages of strings: patterns, their algebra, and how they are written for the engine."""
