"""Tests of the engine on fake models and on a tiny real checkpoint."""
