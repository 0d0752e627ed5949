"""The data of a source in millstream: keys, states, and the entries of its streams."""
