"""When models count as collapsed."""

COLLAPSE_LOSS = 1e6  # a mean test loss above this, or one that is not finite, is a collapse
