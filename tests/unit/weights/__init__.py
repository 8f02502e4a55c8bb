"""Tests of weight files."""
