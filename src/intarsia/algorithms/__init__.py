"""Federated algorithms, each written like its paper and without any engine.

An experiment names an algorithm, and `training.registry` knows the names. Read `linear.fedavg`
first: it is the shortest whole algorithm. `hyfdca`, `flic`, `hyfem` and `femam` are papers with a
folder of their own; `linear` and `personalised` hold the baselines, and `networks` what all
algorithms on networks share. Every algorithm is a record of type `core.Algorithm`.
"""
