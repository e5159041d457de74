"""Carriers: how frames of bytes reach hosts and come back."""
