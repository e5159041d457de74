"""Figures of the FFGG paper on its quadratic problems."""
