"""The data source "posthouse": journals of stores and relays as DataFrames."""
