"""The data pipeline: the whole history of posthouse on Apache Spark through PySpark."""
