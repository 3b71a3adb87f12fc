"""What a reader of a result must know of its training and its scores, in sentences."""
