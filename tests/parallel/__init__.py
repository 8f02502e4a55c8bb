"""Models that several processes share."""
