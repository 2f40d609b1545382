"""ramet: structured generation for language-model programs."""
