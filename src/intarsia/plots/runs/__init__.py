"""The pictures that a run writes into its folder.

`pictures` draws them. `artist` draws those of small tables in a fork, beside what trains.
"""
