"""Tests, mirrored by folder."""
