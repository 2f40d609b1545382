"""Text and ids: encoding by the ``tokenizers`` library, byte tables out of the vocabulary."""
