"""Methods whose default is worse than Local at equal gradients where collaboration helps, and why.

Their pages say the same; a test holds this list to the stored figures.
"""

EXPLAINED: dict[str, str] = {}
