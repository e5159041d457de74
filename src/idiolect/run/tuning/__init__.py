"""Which settings? A search on validation data, and a final run on seeds and data it never saw.

withheld     a federation without its test data: all that a search gets
criterion    what settings are chosen by, and how uncertain it is
search       many settings, each with every seed of the search
"""

from .search import Search, search

__all__ = ["Search", "search"]
