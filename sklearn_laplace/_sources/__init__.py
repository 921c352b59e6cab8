"""Sources of rows that are read in blocks: Parquet files, memory-mapped arrays, dask collections, shards of a group."""
