"""Public CPU loops behind one protocol, each in a process of its own. None is imported here."""
