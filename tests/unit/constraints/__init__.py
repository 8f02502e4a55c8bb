"""Tests of blockdiff.text."""
