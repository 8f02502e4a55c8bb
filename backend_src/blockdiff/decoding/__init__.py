"""How a block is decided: token choice, acceptance, endings. Pure functions, no state."""
