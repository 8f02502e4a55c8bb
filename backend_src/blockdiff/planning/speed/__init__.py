"""How fast a model could be at most: bytes and floating-point operations against a device's rates.

Nothing here is a measurement. Unlike the rest of ``planning`` this imports the ops' costs, and
torch with them.
"""
