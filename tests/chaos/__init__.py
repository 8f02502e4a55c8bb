"""Tests that kill, hang or starve processes on purpose."""
