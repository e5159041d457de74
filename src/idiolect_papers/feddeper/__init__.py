"""Figures and theorems of the FedDeper paper."""
