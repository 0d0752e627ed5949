"""Fuzz targets: files of real servers are changed at random, and read by the code under test."""
