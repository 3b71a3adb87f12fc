"""Files that are written as a whole, and files that somebody else may have written."""
