"""How raw rows of a table become inputs: which columns, in which form, on which scale.

columns (what a column holds, which are features) · fit (means, variances and categories of training
rows) · preparation (the result, as plain data) · federated (the same from sums of several sites)
"""

from .preparation import Preparation, TableColumn

__all__ = ["Preparation", "TableColumn"]
