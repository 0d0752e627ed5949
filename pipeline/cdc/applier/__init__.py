"""`millstream cdc apply`: the Spark program that applies what is in millstream."""
