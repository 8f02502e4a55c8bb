"""Tests of blockdiff.serving without a server."""
