"""What millstream holds of a source: keys, states, and the entries of its streams."""
