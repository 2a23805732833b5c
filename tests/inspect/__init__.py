"""Tests of what is said of a tree in words, see `purestate._inspect`."""
