"""Random tiny models against their public implementation in transformers."""
