"""Tests without processes, models or a network."""
