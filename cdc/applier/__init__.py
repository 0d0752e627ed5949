"""`millstream cdc apply`: the Spark program that applies the changes in millstream."""
