"""The tables of the lake: declarations with pure functions over DataFrames."""
