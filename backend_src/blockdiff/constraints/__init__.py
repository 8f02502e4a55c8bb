"""What an output may be: guides and bad strings as automata over the bytes of tokens."""
