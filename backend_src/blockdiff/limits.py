"""Ranges of sampling fields that the engine and those who ask it agree on. Data only."""

MAX_TEMPERATURE = 100.0
MAX_SEED = 2**64 - 1
# above 0
MAX_REPETITION_PENALTY = 100.0
# either way
MAX_PENALTY = 2.0
MAX_BIAS = 100.0
MAX_BIASES = 1024
MAX_RAMP_START = 1 << 24
MAX_RAMP_SLOPE = 1000.0
MAX_RAMP_BOOST = 1000.0
MAX_TOP_LOG_PROBS = 20
