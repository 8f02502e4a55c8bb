"""Measures accuracy and speed of decoding settings. Knows engines; nothing of flags."""
