"""States in files: saved, loaded, and given to other programs that store arrays.

From the bottom up: `values` turns static values into JSON, and back where no code runs
for it. `describe` turns a tree into a manifest, which is JSON, and arrays by name.
`file` writes and reads the file, a safetensors file with the manifest in its metadata,
and knows nothing of States. `saved` makes a tree of plain containers of a manifest,
whose arrays are read when they are asked for; `fit` compares it with what is expected,
and `place` puts what was read where it belongs. `save` and `load` are what users call.
"""
