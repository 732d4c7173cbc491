"""The bootstrap step in Polars: joins, group_by and window expressions, lazily where that saves memory; see by_pandas for the same in pandas."""
