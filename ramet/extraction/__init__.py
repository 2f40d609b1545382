"""The extraction job: documents in, one JSON record that keeps to a schema per document out."""
