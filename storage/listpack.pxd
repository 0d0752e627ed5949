# Used from Python only: listpack.pyi has what there is.
