"""Trees: what their leaves are, whether two are the same, and how one is written.

From the bottom up: `asserts` compares two trees and names the field that differs,
`leaves` tells kinds of leaves apart, and `source_text` writes a value as source.
"""
