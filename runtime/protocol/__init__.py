"""The request language: messages, errors, configuration, frames. Everything else may import it."""
