"""Readers of the user's data: arrays, frames and tables, folders of pictures, data sets."""
