"""Tests against the real tritonserver."""
