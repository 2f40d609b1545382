"""Measuring: six workload shapes replayed against any OpenAI-compatible server, beside the machine's physical floor."""
