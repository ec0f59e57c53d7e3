"""The table of model families: one file each, with a `FAMILY`. Key names and their meaning are in `..keys`.

Sources: the configuration classes of transformers 5.19-5.24 and the checkpoints as published on the hub.
"""
