"""The demo: records of the Python packages that are installed here, extracted by a real model."""
