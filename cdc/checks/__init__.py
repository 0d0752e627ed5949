"""What is needed at the sources, in millstream and at the destination, and what is missing."""
