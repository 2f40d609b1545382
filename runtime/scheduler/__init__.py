"""Blocks and order: who runs when, on which KV. ``core.Scheduler`` is pure; ``process`` puts sockets around it."""
