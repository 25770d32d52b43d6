"""The tables of the lake: one declaration each, with pure functions over DataFrames."""
