"""Tests of planning, and configs as data."""
