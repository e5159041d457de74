"""The data sets of the table, a file each."""
