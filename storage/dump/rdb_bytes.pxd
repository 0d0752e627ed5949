# Used from Python only: rdb_bytes.pyi has what there is.
