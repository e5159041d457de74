"""Figures and theorems of the lp-proj paper (Han, Li, Lin and Zhang, JMLR 2024)."""
