"""How raw rows of a table become inputs: which columns, in which form, on which scale.

kinds (what a column holds) · outcome (the column to predict) · choose (which are features) · encode
(categories) · scale (means and variances) · fit (from training rows) · prepared (`Preparation`) ·
check (what is read back) · remarks (what is said)
"""

from .preparation import Column, Preparation

__all__ = ["Column", "Preparation"]
