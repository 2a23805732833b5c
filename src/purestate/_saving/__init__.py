"""States in files: saved, loaded, and given to other programs that store arrays.

From the bottom up: `values` turns static values into JSON, and back where no code runs
for it. `describe` turns a tree into a manifest, which is JSON, and arrays by name.
`file` writes and reads the file, a safetensors file with the manifest in its metadata,
and knows nothing of States. `saved` makes a tree of plain containers of a manifest,
whose arrays are read when they are asked for. `place` puts arrays that were read where
they belong, `classes` finds the class of a name, and `fit` compares what was saved with
what is expected. `save` and `load` are what users call; `checkpoints` numbers the files
of a run.
"""
