"""Readers of the user's data. Every source ends in `from_arrays`, the one way to a federation:

    source                                   read by
    arrays of any library                    arrays (convert: one array or a tree of them)
    a frame, a CSV or Parquet file           tables, then data/prepare (columns -> inputs)
    one data set per client                  datasets, samples (one by one or column by column)
    pictures in folders                      folders, pictures
    text by user, with a tokenizer           language

`arrays.from_arrays` reads client ids (ids), targets (targets: classes or values, numbered from 0)
and inputs (convert, sequences: padded), divides them into splits (data/splits.py), and puts them in
order of split and client, in memory or on disk (memory_maps).
"""
