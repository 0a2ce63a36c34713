"""Read tables: .csv files, .parquet files and data frames, into named columns of one type each.

A file goes through `decoding` (bytes to text), `dialect` (text to cells) and `columns` (cells to numbers, truth values
or texts); a frame of pandas, Polars or Arrow comes as columns (`frames`). A `Table` holds what was read, `roles` says
which column is a feature, and `summary` says in one line what a table was read as. Nothing is guessed in silence: where
two readings are possible, the table is refused with the option that decides.
"""
